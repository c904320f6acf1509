// The data of the page, indexed: nodes by id, values, what made a node and what became of it.
export async function decode(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate'));
  return JSON.parse(await new Response(stream).text());
}

const HIDDEN = new Set(['Constant']);

export class Side {
  constructor(name, data, model) {
    this.name = name;
    this.values = data.values;
    this.inputs = data.inputs;
    this.outputs = data.outputs;
    this.rows = new Map(data.nodes.map((row) => [row[0], row]));
    this.order = data.nodes.map((row) => row[0]);
    this.readers = new Map();
    for (const [id, inputs] of data.nodes) {
      for (const at of inputs) {
        if (at < 0) continue;
        if (!this.readers.has(at)) this.readers.set(at, []);
        this.readers.get(at).push(id);
      }
    }
    this.constants = new Set(data.nodes.filter((row) => this.isConstant(row, model)).map((row) => row[0]));
  }

  /** Whether a node depends on weights alone: it is shown on request only. */
  isConstant([id, inputs], model) {
    return HIDDEN.has(model.op(id)) || (inputs.length > 0 && inputs.every((at) => at < 0 || this.values[at][3] === 'weight'));
  }

  has(id) { return this.rows.has(id); }
}

export class Model {
  constructor(data) {
    this.data = data;
    this.groups = data.groups.map(([parent, label, alike], id) => ({ id, parent, label, alike, children: [], nodes: [] }));
    for (const group of this.groups) if (group.parent >= 0) this.groups[group.parent].children.push(group.id);
    this.before = data.before && new Side('before', data.before, this);
    this.after = new Side('after', data.after, this);
    this.changed = new Set(data.changed);
    this.numbers = new Map();
    this.count();
    this.rewrites = data.rewrites.map(([number, pass, level, step, graph, why, before, after, swept]) =>
      ({ number, pass, level, step, graph, why: data.whys[why], before, after, swept }));
    this.madeBy = new Map();
    this.goneBy = new Map();
    this.changedBy = new Map();
    for (const rewrite of this.rewrites) this.index(rewrite);
    this.reasons = new Map();
    for (const [pass, reason, where] of data.refusals || []) {
      for (const [id, about] of where) push(this.reasons, id, { pass, reason, about });
    }
  }

  index(rewrite) {
    const kept = new Set(rewrite.after.filter((id) => rewrite.before.includes(id)));
    for (const id of rewrite.after) push(kept.has(id) || this.before?.has(id) ? this.changedBy : this.madeBy, id, rewrite);
    for (const id of rewrite.before) if (!kept.has(id)) push(this.goneBy, id, rewrite);
    for (const id of rewrite.swept) push(this.goneBy, id, rewrite);
  }

  /** How many nodes each group holds, on each side. */
  count() {
    for (const group of this.groups) Object.assign(group, { before: 0, after: 0, removed: 0, added: 0, edited: 0 });
    this.data.nodes.forEach((node, id) => {
      const before = this.before?.has(id);
      const after = this.after.has(id);
      if (!before && !after) return;
      this.groups[node[3]].nodes.push(id);
      for (let at = node[3]; at >= 0; at = this.groups[at].parent) {
        const group = this.groups[at];
        if (before) group.before += 1;
        if (after) group.after += 1;
        if (before && !after) group.removed += 1;
        if (after && !before) group.added += 1;
        if (before && after && this.changed.has(id)) group.edited += 1;
      }
    });
  }

  /** A number for a name: names themselves make no keys, whatever they hold. */
  numberOf(name) {
    if (!this.numbers.has(name)) this.numbers.set(name, this.numbers.size);
    return this.numbers.get(name);
  }

  op(id) { return this.data.ops[this.data.nodes[id][0]]; }
  nameOf(id) { return this.data.nodes[id][1]; }
  graphOf(id) { return this.data.graphs[this.data.nodes[id][2]]; }
  groupOf(id) { return this.data.nodes[id][3]; }

  status(id) {
    if (!this.before) return 'same';
    if (!this.after.has(id)) return this.before.has(id) ? 'removed' : 'between';
    if (!this.before.has(id)) return 'added';
    return this.changed.has(id) ? 'changed' : 'same';
  }

  /** The groups around a node or group, outermost first, without the whole model. */
  around(group) {
    const line = [];
    for (let at = group; at > 0; at = this.groups[at].parent) line.push(at);
    return line.reverse();
  }

  /** What a node is shown by: itself, or the outermost group around it that is folded. */
  shownAs(id, open) {
    const folded = this.around(this.groupOf(id)).find((group) => !open.has(group));
    return folded === undefined ? `n${id}` : `g${folded}`;
  }

  sides() { return [this.before, this.after].filter(Boolean); }
}

function push(map, key, value) {
  if (!map.has(key)) map.set(key, []);
  map.get(key).push(value);
}
