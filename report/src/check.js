// The index over many models: what became of each, sorted and filtered.
import { bytes, error, fill, h, numeric, plural, table } from './dom.js';

const COLUMNS = [
  ['model', (row) => row.name], ['status', (row) => row.status], ['nodes before', (row) => row.nodes_before], ['nodes', (row) => row.nodes], ['size', (row) => row.size],
  ['worst error', (row) => row.error], ['rewrites', (row) => row.rewrites], ['seconds', (row) => row.seconds], ['latency', (row) => row.latency],
];

export function index(data) {
  let sorted = { at: null, down: false };
  const body = h('div');
  const filter = h('input', { type: 'search', placeholder: 'Filter by name or status', 'aria-label': 'Filter models', oninput: () => draw() });
  const used = COLUMNS.filter(([, value]) => data.rows.some((row) => value(row) !== null && value(row) !== undefined && value(row) !== ''));
  const sort = (at) => { sorted = { at, down: sorted.at === at && !sorted.down }; draw(); };
  const shown = { size: (value) => numeric(value === null ? '' : bytes(value)), 'worst error': (value) => numeric(error(value)), seconds: (value) => numeric(value === null ? '' : value.toFixed(1)), latency: (value) => numeric(value === null ? '' : `${(1 / value).toFixed(2)}×`) };

  function draw() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = data.rows.filter((row) => words.every((word) => `${row.name} ${row.status}`.toLowerCase().includes(word)));
    if (sorted.at !== null) {
      const value = used[sorted.at][1];
      rows.sort((a, b) => compare(value(a), value(b)) * (sorted.down ? -1 : 1));
    }
    fill(body, h('p', { class: 'quiet', role: 'status' }, plural(rows.length, 'model')), table([...used.map(([title], at) => h('button', { type: 'button', class: 'sort', 'aria-label': `Sort by ${title}`, onclick: () => sort(at) }, title, sorted.at === at ? (sorted.down ? ' ↓' : ' ↑') : '')), 'says'],
      rows.map((row) => [...used.map(([title, value]) => cell(row, title, value(row), shown[title], data.kinds)), row.says.length ? h('ul', { class: 'says' }, row.says.map((line) => h('li', null, line))) : ''])));
  }
  draw();
  const counts = Object.entries(data.counts);
  return [
    h('section', { id: 'summary' }, h('div', { class: 'cards' }, counts.map(([status, number]) => h('div', { class: `card ${data.kinds[status]}` }, h('strong', null, number), h('span', null, status)))),
      data.notes.length ? h('ul', null, data.notes.map((note) => h('li', null, note))) : null),
    h('section', { id: 'models' }, h('h2', null, 'Models'), h('div', { class: 'controls' }, filter), body),
  ];
}

function cell(row, title, value, shown, kinds) {
  if (title === 'model' && row.page) return h('a', { href: row.page }, value);
  if (title === 'status') return h('span', { class: `badge ${kinds[value]}` }, value);
  if (shown) return shown(value ?? null);
  return value === null || value === undefined ? '' : value;
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return a < b ? -1 : 1;
}
