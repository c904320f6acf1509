// What is to be drawn of the graphs: nodes and folded groups, the open groups around them, and edges between.

const MOST_APART = 6;

/** The drawing of some sides of a model, one of them or both laid over each other. */
export function visible(model, sides, open, withConstants) {
  const items = new Map();
  const edges = new Map();
  const frames = new Set();
  for (const side of sides) {
    const shown = new Map();
    for (const id of side.order) {
      if (!withConstants && side.constants.has(id) && !side.outputs.some((at) => side.values[at][4] === id)) continue;
      const key = model.shownAs(id, open);
      shown.set(id, key);
      if (!items.has(key)) items.set(key, item(model, key, frames));
    }
    drawInterface(model, side, items);
    for (const [id, key] of shown) connect(model, side, id, key, shown, edges);
    for (const at of side.outputs) {
      const from = source(model, side, at, shown);
      if (from) edge(edges, from, keyOf(model, 'o', side, side.values[at][0]), side, at);
    }
  }
  return { items: [...items.values()], edges: [...edges.values()], frames };
}

function item(model, key, frames) {
  const id = Number(key.slice(1));
  const group = key[0] === 'g' ? model.groups[id].parent : model.groupOf(id);
  for (let at = group; at > 0; at = model.groups[at].parent) frames.add(at);
  return { key, id, kind: key[0] === 'g' ? 'group' : 'node', parent: group > 0 ? group : null };
}

/** The inputs and outputs of the model, as far as something is drawn for them. */
function drawInterface(model, side, items) {
  for (const [letter, list] of [['i', side.inputs], ['o', side.outputs]]) {
    for (const at of list) {
      const [name, type, shape, kind] = side.values[at];
      if (letter === 'i' && kind === 'weight') continue;
      const key = keyOf(model, letter, side, name);
      const many = key.length === 1;
      const what = letter === 'i' ? 'input' : 'output';
      if (!items.has(key)) items.set(key, { key, kind: what, name: many ? `${list.length} ${what}s` : name, type: many ? '' : type, shape: many ? '' : shape, parent: null });
    }
  }
}

/** One box for each input or output, or one for all where they are many. */
function keyOf(model, letter, side, name) {
  const list = letter === 'i' ? side.inputs : side.outputs;
  return list.length > MOST_APART ? letter : `${letter}${model.numberOf(name)}`;
}

function connect(model, side, id, key, shown, edges) {
  for (const at of side.rows.get(id)[1]) {
    if (at < 0) continue;
    const from = source(model, side, at, shown);
    if (from && from !== key) edge(edges, from, key, side, at);
  }
}

function source(model, side, at, shown) {
  const [name, , , kind, producer] = side.values[at];
  if (producer >= 0) return shown.get(producer);
  return kind === 'input' && side.inputs.includes(at) ? keyOf(model, 'i', side, name) : undefined;
}

function edge(edges, from, to, side, at) {
  const key = `${from}>${to}`;
  let found = edges.get(key);
  if (!found) edges.set(key, (found = { from, to, values: new Map(), sides: new Set() }));
  found.sides.add(side.name);
  const [name, type, shape] = side.values[at];
  found.values.set(name, `${type}${shape}`);
}
