// Positions of what is visible, by dagre; frames of open groups are laid out around what they hold.
import { graphlib, layout } from '@dagrejs/dagre';

const FONT = '12px system-ui, sans-serif';
const SMALL = '10.5px system-ui, sans-serif';
const ruler = document.createElement('canvas').getContext('2d');

function width(text, font) {
  ruler.font = font;
  return ruler.measureText(text).width;
}

export function size(item, model) {
  const lines = labels(item, model);
  const widest = Math.max(...lines.map((line, at) => width(line, at ? SMALL : FONT)));
  return { width: Math.max(64, Math.ceil(widest) + 22), height: lines.length > 1 ? 42 : 26 };
}

export function labels(item, model) {
  if (item.kind === 'input' || item.kind === 'output') return [short(item.name || item.kind), short(`${item.type} ${item.shape}`.trim())].filter((text, at) => text || !at);
  if (item.kind === 'node') return [short(model.op(item.id).split('::').pop())];
  const { label, before, after, alike } = model.groups[item.id];
  const nodes = model.before && before !== after ? `${before} → ${after} nodes` : `${after || before} nodes`;
  return [`+ ${short(label)}`, alike ? `${nodes} · ${alike} alike` : nodes];
}

const short = (text) => (text.length > 34 ? `${text.slice(0, 16)}…${text.slice(-16)}` : text);

export function arrange(drawing, model) {
  const graph = new graphlib.Graph({ compound: true, multigraph: false });
  graph.setGraph({ rankdir: 'TB', nodesep: 18, ranksep: 30, edgesep: 8, marginx: 16, marginy: 16, ranker: ranker(drawing) });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const frame of drawing.frames) graph.setNode(`f${frame}`, { frame });
  for (const item of drawing.items) graph.setNode(item.key, { ...size(item, model), item });
  for (const frame of drawing.frames) if (model.groups[frame].parent > 0) graph.setParent(`f${frame}`, `f${model.groups[frame].parent}`);
  for (const item of drawing.items) if (item.parent) graph.setParent(item.key, `f${item.parent}`);
  for (const edge of drawing.edges) if (graph.hasNode(edge.from) && graph.hasNode(edge.to)) graph.setEdge(edge.from, edge.to, { edge });
  layout(graph);
  return {
    width: graph.graph().width || 100,
    height: graph.graph().height || 100,
    nodes: graph.nodes().map((key) => ({ key, ...graph.node(key) })),
    edges: graph.edges().map((key) => graph.edge(key)),
  };
}

/** The best ranks where there are few nodes, quick ones where there are many. */
const ranker = (drawing) => (drawing.items.length > 250 ? 'longest-path' : 'network-simplex');
