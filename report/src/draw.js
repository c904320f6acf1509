// One drawing: items, frames and edges as SVG, with pan and zoom, and keys that walk along the edges.
import { select } from 'd3-selection';
import { curveBasis, line } from 'd3-shape';
import { zoom, zoomIdentity } from 'd3-zoom';
import { fill, s } from './dom.js';
import { arrange, labels } from './layout.js';
import { visible } from './view.js';

const path = line((point) => point.x, (point) => point.y).curve(curveBasis);
const LEAST_SCALE = 0.6;

export class Pane {
  /**
   * @param {Model} model
   * @param {Side[]} sides what is drawn, one side or both over each other
   * @param {object} actions what a click does: select(id), fold(group), unfold(group)
   */
  constructor(model, sides, title, actions) {
    Object.assign(this, { model, sides, actions, at: new Map(), focused: null });
    this.stage = s('g');
    this.svg = s('svg', { class: 'graph', role: 'application', tabindex: 0, 'aria-label': `${title}: arrow keys walk, Enter opens, Backspace folds, plus and minus zoom, 0 fits` },
      s('defs', null, ['same', 'removed', 'added'].map((kind) =>
        s('marker', { id: `arrow-${title}-${kind}`, class: `arrow ${kind}`, viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: 'auto' }, s('path', { d: 'M0,0L8,4L0,8z' })))),
      this.stage);
    this.title = title;
    this.zoom = zoom().scaleExtent([0.03, 4]).on('zoom', ({ transform }) => this.stage.setAttribute('transform', transform));
    this.selection = select(this.svg).call(this.zoom).on('dblclick.zoom', null);
    this.svg.addEventListener('keydown', (event) => this.key(event));
  }

  draw(open, withConstants, anchor) {
    const old = anchor && this.place(anchor);
    const transform = this.svg.__zoom;
    this.drawing = visible(this.model, this.sides, open, withConstants);
    this.layout = arrange(this.drawing, this.model);
    this.at = new Map(this.layout.nodes.map((node) => [node.key, node]));
    const frames = this.layout.nodes.filter((node) => node.frame !== undefined).sort((a, b) => b.width * b.height - a.width * a.height);
    fill(this.stage, frames.map((node) => this.frame(node)), this.layout.edges.map((edge) => this.edge(edge)),
      this.layout.nodes.filter((node) => node.item).map((node) => this.item(node)));
    this.mark();
    const now = old && this.place(anchor);
    if (now) this.selection.call(this.zoom.transform, transform.translate(old.x - now.x, old.y - now.y));
  }

  /** Where a group's upper edge is, folded or not. */
  place(group) {
    const node = this.at.get(`f${group}`) || this.at.get(`g${group}`);
    return node && { x: node.x, y: node.y - node.height / 2 };
  }

  frame({ frame, x, y, width, height }) {
    const { label, alike } = this.model.groups[frame];
    const act = () => this.actions.fold(frame);
    return s('g', { class: 'frame', transform: `translate(${x - width / 2},${y - height / 2})` },
      s('rect', { width, height, rx: 8 }),
      s('g', { class: 'handle', 'data-fold': frame, onclick: act },
        s('rect', { width: Math.min(width, 26 + 6.4 * Math.min(label.length, 60)), height: 18, rx: 8 }),
        s('text', { x: 8, y: 13 }, `− ${clipped(label, width)}`),
        s('title', null, `Fold ${label}${alike ? `, ${alike} alike` : ''}`)));
  }

  edge({ points, edge }) {
    const kind = this.sides.length > 1 && edge.sides.size === 1 ? (edge.sides.has('before') ? 'removed' : 'added') : 'same';
    const names = [...edge.values].slice(0, 8).map(([name, type]) => `${name} ${type}`);
    return s('path', { class: `edge ${kind}`, d: path(points), 'marker-end': `url(#arrow-${this.title}-${kind})` },
      s('title', null, names.join('\n'), edge.values.size > 8 ? `\n… ${edge.values.size} in all` : ''));
  }

  item(node) {
    const { item, x, y, width, height } = node;
    const lines = labels(item, this.model);
    const group = item.kind === 'group';
    return s('g', { class: `item ${item.kind} ${this.status(item)}`, 'data-key': item.key, transform: `translate(${x - width / 2},${y - height / 2})`,
      onclick: () => this.act(item) },
    group && this.model.groups[item.id].alike ? s('rect', { class: 'pile', x: 4, y: 4, width, height, rx: 6 }) : null,
    s('rect', { width, height, rx: item.kind === 'node' ? 4 : group ? 6 : 13 }),
    lines.map((text, at) => s('text', { class: at ? 'small' : null, x: width / 2, y: (lines.length > 1 ? 17 : 17.5) + at * 15, 'text-anchor': 'middle' }, text)),
    s('title', null, this.tooltip(item)));
  }

  status(item) {
    if (item.kind === 'node') return this.model.status(item.id);
    if (item.kind !== 'group' || !this.model.before) return 'same';
    const { removed, added, edited, before, after } = this.model.groups[item.id];
    if (!after && removed) return 'removed';
    if (!before && added) return 'added';
    return removed || added || edited ? 'changed' : 'same';
  }

  tooltip(item) {
    if (item.kind === 'node') return `${this.model.op(item.id)} ${this.model.nameOf(item.id)}`;
    if (item.kind !== 'group') return `${item.kind} ${item.name} ${item.type}${item.shape}`;
    const { label, removed, added, edited } = this.model.groups[item.id];
    return `Unfold ${label}: ${removed} gone, ${added} new, ${edited} changed`;
  }

  act(item) {
    this.focus(item.key);
    if (item.kind === 'group') this.actions.unfold(item.id);
    else if (item.kind === 'node') this.actions.select(item.id);
  }

  focus(key) {
    this.focused = key;
    this.mark();
  }

  /** Show which node is selected, what it is related to, and where the keys are. */
  mark() {
    const { selected, related } = this.actions.marks();
    for (const element of this.stage.querySelectorAll('.item')) {
      const { key } = element.dataset;
      element.classList.toggle('selected', selected.has(key));
      element.classList.toggle('related', related.has(key));
      element.classList.toggle('focused', key === this.focused);
    }
  }

  key(event) {
    const steps = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
    const focused = this.at.get(this.focused);
    if (steps[event.key]) this.walk(...steps[event.key]);
    else if ((event.key === 'Enter' || event.key === ' ') && focused?.item) this.act(focused.item);
    else if (event.key === 'Backspace' && focused?.item?.parent) this.actions.fold(focused.item.parent);
    else if (event.key === '+' || event.key === '=') this.scale(1.3);
    else if (event.key === '-') this.scale(1 / 1.3);
    else if (event.key === '0') this.fit();
    else return;
    event.preventDefault();
  }

  /** Go to the nearest item in a direction. */
  walk(dx, dy) {
    const items = [...this.at.values()].filter((node) => node.item);
    const from = this.at.get(this.focused);
    let best = from ? null : items.reduce((top, node) => (!top || node.y < top.y ? node : top), null);
    let least = Infinity;
    for (const node of from ? items : []) {
      const along = (node.x - from.x) * dx + (node.y - from.y) * dy;
      const across = Math.abs((node.x - from.x) * dy) + Math.abs((node.y - from.y) * dx);
      if (along > 1 && along + 2 * across < least) { least = along + 2 * across; best = node; }
    }
    if (!best) return;
    this.focus(best.key);
    this.reveal(best.key);
  }

  box() { return { width: this.svg.clientWidth || 600, height: this.svg.clientHeight || 400 }; }

  scale(factor) { this.selection.call(this.zoom.scaleBy, factor); }

  /** All of it, if that can be read; else its upper part. */
  fit(whole = true) {
    const { width, height } = this.box();
    const all = Math.min(width / this.layout.width, height / this.layout.height, 1.2);
    const scale = whole || all > LEAST_SCALE ? all : Math.max(Math.min(width / this.layout.width, 1), 0.35);
    const top = all === scale ? (height - this.layout.height * scale) / 2 : 0;
    this.selection.call(this.zoom.transform, zoomIdentity.translate((width - this.layout.width * scale) / 2, top).scale(scale));
  }

  reveal(key) {
    const node = this.at.get(key);
    if (!node) return;
    const { width, height } = this.box();
    const { k, x, y } = this.svg.__zoom;
    const [left, top] = [node.x * k + x, node.y * k + y];
    if (k >= 0.4 && left > 60 && left < width - 60 && top > 40 && top < height - 40) return;
    const scale = Math.max(k, 0.8);
    this.selection.call(this.zoom.transform, zoomIdentity.translate(width / 2 - node.x * scale, height / 2 - node.y * scale).scale(scale));
  }
}

const clipped = (label, width) => {
  const most = Math.max(3, Math.floor((width - 26) / 6.4));
  return label.length > most ? `${label.slice(0, most - 1)}…` : label;
};
