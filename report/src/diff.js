// The parts of a page that compares two models.
import { bytes, count, h, numeric, plural, table } from './dom.js';
import { byOp } from './sections.js';

const section = (id, title, ...children) => h('section', { id, 'aria-labelledby': `${id}-title` }, h('h2', { id: `${id}-title` }, title), children);
const name = (text) => h('span', { class: 'name' }, text);

export function differences({ nodes, interface: face, weights, header }) {
  const changed = (rows) => rows.map(({ what, kind, a, b }) => [name(what), kind, name(a ?? ''), name(b ?? '')]);
  return [
    section('summary', 'Summary',
      h('div', { class: 'cards' },
        h('div', { class: 'card' }, h('strong', null, `${count(nodes.before)} → ${count(nodes.after)}`), h('span', null, 'nodes')),
        h('div', { class: `card ${face.length ? 'bad' : 'good'}` }, h('strong', null, face.length ? plural(face.length, 'difference') : 'the same'), h('span', null, 'inputs and outputs')),
        h('div', { class: 'card' }, h('strong', null, weights.same + weights.renamed), h('span', null, 'weights in both')),
        h('div', { class: 'card' }, h('strong', null, `${weights.removed.length} / ${weights.added.length} / ${weights.changed.length}`), h('span', null, 'weights gone / new / changed'))),
      h('h3', null, 'Nodes by op'), byOp(nodes.by_op)),
    face.length || header.length ? section('interface', 'Interface and header', table(['what', 'difference', 'in A', 'in B'], changed([...face, ...header]))) : null,
    section('weights', 'Weights',
      h('p', null, `${plural(weights.same, 'weight')} the same${weights.renamed ? `, ${weights.renamed} more under another name` : ''}.`),
      weightTable('Changed', weights.changed), weightTable('Only in A', weights.removed), weightTable('Only in B', weights.added)),
  ];
}

function weightTable(title, rows) {
  if (!rows.length) return null;
  return h('details', { open: rows.length <= 20 }, h('summary', null, `${title}: ${rows.length}`), table(['name', 'type', 'size'], rows.map((row) => [name(row.name), row.type, numeric(bytes(row.bytes))])));
}
