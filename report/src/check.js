// The index over many models: what became of each, sorted and filtered.
import { bytes, count, error, fill, h, plural } from './dom.js';

const ratio = (value) => `${value.toFixed(2)}×`;
const LATENCY = "the time of a call of the result over the original's: below 1 is faster";

/** The columns: a title, the value in a row, how it is shown where it is a number, and what it is. */
const columns = (kinds) => [
  ['model', (row) => row.name],
  ['status', (row) => Object.keys(kinds).indexOf(row.status)], // sorted as the worst comes first
  ['nodes before', (row) => row.nodes_before, count], ['nodes', (row) => row.nodes, count], ['size', (row) => row.size, bytes],
  ['worst error', (row) => row.error, error], ['rewrites', (row) => row.rewrites, count], ['seconds', (row) => row.seconds, (value) => value.toFixed(1)],
  ['latency', (row) => row.latency, ratio, LATENCY],
].map(([title, value, shown, about]) => ({ title, value, shown, about }));

const isKnown = (value) => value !== null && value !== undefined && value !== '';

export function index(data) {
  let sorted = { column: null, down: false };
  const body = h('div');
  const filter = h('input', { type: 'search', placeholder: 'Filter by name or status', 'aria-label': 'Filter models', oninput: () => draw() });
  const used = columns(data.kinds).filter(({ value }) => data.rows.some((row) => isKnown(value(row))));
  const sort = (column) => { sorted = { column, down: sorted.column === column && !sorted.down }; draw(); };
  const arrow = (column) => (sorted.column === column ? (sorted.down ? ' ↓' : ' ↑') : '');
  const header = (column) => h('th', { class: column.shown ? 'number' : null, scope: 'col', title: column.about },
    h('button', { type: 'button', class: 'sort', 'aria-label': `Sort by ${column.title}`, onclick: () => sort(column) }, column.title, arrow(column)));

  function draw() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = data.rows.filter((row) => words.every((word) => `${row.name} ${row.status}`.toLowerCase().includes(word)));
    const { column, down } = sorted;
    if (column) rows.sort((a, b) => compare(column.value(a), column.value(b)) * (down ? -1 : 1));
    fill(body, h('p', { class: 'quiet', role: 'status' }, plural(rows.length, 'model')),
      h('div', { class: 'scroller', tabindex: 0 }, h('table', { class: 'models' },
        h('thead', null, h('tr', null, used.map(header), h('th', { scope: 'col' }, 'says'))),
        h('tbody', null, rows.map((row) => h('tr', null, used.map((each) => cell(row, each, data.kinds)),
          h('td', { class: 'said' }, row.says.length ? h('ul', { class: 'says' }, row.says.map((line) => h('li', null, line))) : null)))))),
      used.some(({ about }) => about) ? h('p', { class: 'quiet' }, `Latency is ${LATENCY}.`) : null);
  }
  draw();
  const counts = Object.entries(data.counts);
  return [
    h('section', { id: 'summary' }, h('div', { class: 'cards' }, counts.map(([status, number]) => h('div', { class: `card ${data.kinds[status]}` }, h('strong', null, number), h('span', null, status)))),
      data.notes.length ? h('ul', null, data.notes.map((note) => h('li', null, note))) : null),
    h('section', { id: 'models' }, h('h2', null, 'Models'), h('div', { class: 'controls' }, filter), body),
  ];
}

function cell(row, { title, value, shown }, kinds) {
  if (title === 'model') return h('td', { class: 'model' }, row.page ? h('a', { href: row.page }, row.name) : row.name);
  if (title === 'status') return h('td', null, h('span', { class: `badge ${kinds[row.status]}` }, row.status));
  const known = value(row);
  return h('td', { class: 'number', 'data-title': title }, !isKnown(known) ? '' : typeof known === 'number' ? shown(known) : known);
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return a < b ? -1 : 1;
}
