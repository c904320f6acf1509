// The graphs with their controls: which sides, what is unfolded, what is searched, what is selected.
import { fill, h, plural } from './dom.js';
import { Pane } from './draw.js';
import { Panel } from './panel.js';
import { visible } from './view.js';

const MOST_SHOWN = 400;
const FIRST_SHOWN = 30;
const MOST_FOUND = 200;

export class Explorer {
  constructor(model) {
    this.model = model;
    this.open = new Set();
    this.selected = null;
    this.constants = false;
    this.words = model.data.kind === 'diff' ? { before: 'A', after: 'B', both: 'A and B' }
      : { before: 'Original', after: model.before ? 'Result' : 'Model', both: 'Original and result' };
    this.mode = !model.before ? 'after' : window.innerWidth < 800 ? 'both' : 'beside';
    this.panel = new Panel(model, (id) => this.select(id), () => this.select(null));
    this.canvas = h('div', { class: 'canvas' });
    this.status = h('p', { class: 'status', role: 'status' });
    this.results = h('div', { class: 'results', hidden: true });
    this.search = h('input', { type: 'search', placeholder: 'Search by name, op or module', 'aria-label': 'Search the graph', oninput: () => this.find(), onkeydown: (event) => this.searchKey(event) });
    this.controls = h('div', { class: 'controls' });
    this.element = h('section', { id: 'graph', 'aria-labelledby': 'graph-title' }, h('h2', { id: 'graph-title' }, 'Graph'),
      this.controls, this.legend(), h('div', { class: 'workspace' }, this.canvas, this.panel.element), this.status);
    this.unfoldFirst();
  }

  start() {
    this.rebuild();
    document.addEventListener('keydown', (event) => {
      const typing = event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement;
      if (event.key === '/' && !typing) { event.preventDefault(); this.search.focus(); }
      if (event.key === 'Escape' && this.selected !== null && !typing) this.select(null);
    });
    window.addEventListener('beforeprint', () => this.panes.forEach((pane) => this.toPrint(pane)));
    window.addEventListener('afterprint', () => this.panes.forEach((pane) => pane.svg.removeAttribute('viewBox')));
  }

  /** On paper a drawing is shown whole, wherever it stands on the screen. */
  toPrint(pane) {
    const { width, height } = pane.layout;
    const { k, x, y } = pane.svg.__zoom;
    pane.svg.setAttribute('viewBox', `${x} ${y} ${width * k} ${height * k}`);
  }

  drawn() {
    const { before, after } = this.model;
    return { beside: [[before], [after]], both: [[before, after]], before: [[before]], after: [[after]] }[this.mode];
  }

  rebuild() {
    fillControls(this);
    const titles = this.mode === 'both' ? ['both'] : this.drawn().map(([side]) => side.name);
    const actions = { select: (id) => this.select(id), fold: (group) => this.fold(group), unfold: (group) => this.unfold(group), marks: () => this.marks() };
    this.panes = this.drawn().map((sides, at) => new Pane(this.model, sides, titles[at], actions));
    const { words } = this;
    fill(this.canvas, this.panes.map((pane) => h('figure', null,
      h('figcaption', null, words[pane.title], ' ', h('span', { class: 'quiet' }, plural(new Set(pane.sides.flatMap((side) => side.order)).size, 'node'))), pane.svg)));
    this.draw();
    this.panes.forEach((pane) => pane.fit(false));
    if (this.selected !== null) this.select(this.selected);
  }

  draw(anchor) {
    this.panes.forEach((pane) => pane.draw(this.open, this.constants, anchor));
    const shown = this.panes.reduce((sum, pane) => sum + pane.drawing.items.length, 0);
    this.status.textContent = `${plural(shown, 'box', 'boxes')} drawn`;
  }

  isOpen(group) { return this.open.has(group); }

  unfold(group) {
    this.openOne(group);
    this.limit(group);
    this.draw(group);
    this.panes.forEach((pane) => pane.reveal(pane.at.has(`g${group}`) ? `g${group}` : pane.drawing.items.find((item) => item.parent === group)?.key));
  }

  /** Open a group, and what it holds where that is one group only. */
  openOne(group) {
    this.open.delete(group);
    this.open.add(group);
    const { children, nodes } = this.model.groups[group];
    if (children.length === 1 && !nodes.length) this.openOne(children[0]);
  }

  fold(group) {
    this.open.delete(group);
    for (const inner of this.model.groups[group].children) if (this.open.has(inner)) this.foldBelow(inner);
    this.draw(group);
  }

  foldBelow(group) {
    this.open.delete(group);
    this.model.groups[group].children.forEach((inner) => this.open.has(inner) && this.foldBelow(inner));
  }

  /** Fold what was unfolded longest ago where too much would be drawn. */
  limit(keep) {
    const kept = new Set(this.model.around(keep));
    for (const group of [...this.open]) {
      if (visible(this.model, this.model.sides(), this.open, this.constants).items.length <= MOST_SHOWN) return;
      if (!kept.has(group)) this.foldBelow(group);
    }
  }

  /** Unfold from the outside as long as there is little to see. */
  unfoldFirst() {
    const sides = this.model.sides();
    for (let tries = 0; tries < 12; tries += 1) {
      const { items } = visible(this.model, sides, this.open, this.constants);
      const folded = items.filter((item) => item.kind === 'group').sort((a, b) => this.weight(b.id) - this.weight(a.id));
      if (items.length > FIRST_SHOWN / 2 || !folded.length) return;
      this.openOne(folded[0].id);
      if (visible(this.model, sides, this.open, this.constants).items.length > 2 * FIRST_SHOWN) { this.foldBelow(folded[0].id); return; }
    }
  }

  weight(group) { return Math.max(this.model.groups[group].before, this.model.groups[group].after); }

  select(id) {
    this.selected = id;
    this.panel.show(id);
    if (id === null) { this.panes.forEach((pane) => pane.mark()); return; }
    const own = this.panes.some((pane) => pane.sides.some((side) => side.has(id)));
    const near = [id, ...this.relatives(id)];
    this.show(own ? id : near.find((one) => this.panes.some((pane) => pane.sides.some((side) => side.has(one)))));
    this.panes.forEach((pane) => {
      const one = near.find((candidate) => pane.at.has(this.model.shownAs(candidate, this.open)) && pane.sides.some((side) => side.has(candidate)));
      if (one !== undefined) pane.reveal(this.model.shownAs(one, this.open));
    });
  }

  /** Unfold what is around a node. */
  show(id) {
    if (id === undefined || this.model.groupOf(id) < 0) { this.panes.forEach((pane) => pane.mark()); return; }
    if (this.panes.some((pane) => pane.sides.some((side) => side.has(id) && side.constants.has(id))) && !this.constants) this.constants = true;
    const around = this.model.around(this.model.groupOf(id));
    const closed = around.filter((group) => !this.open.has(group));
    closed.forEach((group) => this.open.add(group));
    if (closed.length) this.limit(this.model.groupOf(id));
    this.draw();
    this.panes.forEach((pane) => pane.focus(this.model.shownAs(id, this.open)));
    fillControls(this);
  }

  /** The nodes that a node comes from, and that came of it. */
  relatives(id) {
    const { model } = this;
    const found = new Set();
    const pending = [id];
    for (let at = 0; at < pending.length && at < 2000; at += 1) {
      const one = pending[at];
      const near = [...(model.madeBy.get(one) || []).flatMap((rewrite) => rewrite.before),
        ...(model.after.has(one) ? [] : (model.goneBy.get(one) || []).slice(-1).flatMap((rewrite) => rewrite.after))];
      for (const next of near) if (!found.has(next) && next !== id) { found.add(next); pending.push(next); }
    }
    return found;
  }

  marks() {
    if (this.selected === null) return { selected: new Set(), related: new Set() };
    const shown = (id) => this.model.shownAs(id, this.open);
    return { selected: new Set([shown(this.selected)]), related: new Set([...this.relatives(this.selected)].filter((id) => this.model.groupOf(id) >= 0).map(shown)) };
  }

  find() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.results.hidden = !words.length;
    if (!words.length) { fill(this.results); return; }
    const { model } = this;
    const found = [];
    let total = 0;
    model.data.nodes.forEach((node, id) => {
      if (!model.after.has(id) && !model.before?.has(id)) return;
      const text = `${model.op(id)} ${model.nameOf(id)}`.toLowerCase();
      if (!words.every((word) => text.includes(word))) return;
      total += 1;
      found.push(id);
    });
    const rank = (id) => (model.op(id).toLowerCase() === words[0] ? 0 : model.op(id).toLowerCase().includes(words[0]) ? 2 : 4) + (model.after.has(id) ? 0 : 1);
    found.sort((a, b) => rank(a) - rank(b));
    found.length = Math.min(found.length, MOST_FOUND);
    fill(this.results, h('p', { class: 'quiet' }, total ? `${plural(total, 'node')}${total > found.length ? `, the first ${found.length} shown` : ''}` : 'no such node'),
      h('ul', { class: 'links' }, found.map((id) => h('li', null, this.panel.link(id)))));
  }

  searchKey(event) {
    if (event.key === 'Enter') this.results.querySelector('button')?.click();
    if (event.key === 'Escape') { this.search.value = ''; this.find(); }
    if (event.key === 'ArrowDown') { event.preventDefault(); this.results.querySelector('button')?.focus(); }
  }

  foldAll() { this.open.clear(); this.unfoldFirst(); this.draw(); this.panes.forEach((pane) => pane.fit(false)); fillControls(this); }

  legend() {
    if (!this.model.before) return null;
    const words = [['same', 'unchanged'], ['changed', 'changed, or holds changes'], ['removed', 'gone'], ['added', 'new']];
    return h('ul', { class: 'legend' }, words.map(([kind, text]) => h('li', null, h('span', { class: `swatch ${kind}` }), text)));
  }
}

function fillControls(explorer) {
  const modes = explorer.model.before ? [['beside', 'Side by side'], ['both', 'Overlaid'], ['before', explorer.words.before], ['after', explorer.words.after]] : [];
  const button = (label, act, more) => h('button', { type: 'button', onclick: act, ...more }, label);
  const focused = document.activeElement?.dataset?.control;
  fill(explorer.controls,
    modes.length ? h('div', { class: 'switch', role: 'group', 'aria-label': 'What is drawn' }, modes.map(([mode, label]) =>
      button(label, () => { explorer.mode = mode; explorer.rebuild(); }, { 'aria-pressed': String(explorer.mode === mode), 'data-control': mode }))) : null,
    h('div', { class: 'searching' }, explorer.search, explorer.results),
    button('Fit', () => explorer.panes.forEach((pane) => pane.fit()), { 'data-control': 'fit' }),
    button('Fold all', () => explorer.foldAll(), { 'data-control': 'fold' }),
    button('Constants', () => { explorer.constants = !explorer.constants; explorer.draw(); fillControls(explorer); }, { 'aria-pressed': String(explorer.constants), 'data-control': 'constants', title: 'Draw nodes that depend on weights alone, too' }));
  if (focused) explorer.controls.querySelector(`[data-control="${focused}"]`)?.focus();
}
