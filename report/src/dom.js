// Elements from names, attributes and children. Text always becomes a text node: nothing in a model is markup.
const SVG = 'http://www.w3.org/2000/svg';

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) add(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export const h = (name, attributes, ...children) => make(document.createElement(name), attributes, children);
export const s = (name, attributes, ...children) => make(document.createElementNS(SVG, name), attributes, children);

export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** A table; a row is a list of cells, and a cell is text, a number (aligned to the right) or an element. */
export function table(headers, rows, attributes) {
  const numbers = headers.map((_, at) => rows.some((row) => typeof row[at] === 'number' || row[at]?.numeric));
  const cell = (kind, value, at) =>
    h(kind, { class: numbers[at] ? 'number' : null, scope: kind === 'th' ? 'col' : null }, shown(value));
  return h('div', { class: 'scroller', tabindex: 0 },
    h('table', attributes,
      h('thead', null, h('tr', null, headers.map((header, at) => cell('th', header, at)))),
      h('tbody', null, rows.map((row) => h('tr', null, row.map((value, at) => cell('td', value, at)))))));
}

const shown = (value) => (value && value.numeric ? value.text : typeof value === 'number' ? count(value) : value);

/** A cell that holds a number in words of its own. */
export const numeric = (text) => ({ numeric: true, text });

export const count = (value) => (Number.isInteger(value) ? value.toLocaleString('en-US') : String(value));

export function bytes(value) {
  if (value === null || value === undefined) return 'unknown';
  let at = 0;
  let left = value;
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  while (left >= 999.5 && at < units.length - 1) { left /= 1000; at += 1; }
  return `${at ? left.toFixed(1) : left} ${units[at]}`;
}

export function seconds(value) {
  return value >= 1 ? `${value.toFixed(2)} s` : `${(value * 1000).toFixed(value < 0.01 ? 2 : 1)} ms`;
}

export function error(value) {
  if (typeof value !== 'number') return value === null || value === undefined ? '' : String(value);
  return value === 0 ? '0' : value.toExponential(1);
}

export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;
