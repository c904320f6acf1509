// What is told of one node: what it is, how it came to be, what became of it, and why it was left as it is.
import { fill, h, plural } from './dom.js';

const MANY = 12;

export class Panel {
  constructor(model, select, close) {
    Object.assign(this, { model, select });
    this.body = h('div', { class: 'panel-body' });
    this.element = h('aside', { class: 'panel', 'aria-label': 'Node', hidden: true },
      h('button', { class: 'close', type: 'button', 'aria-label': 'Close', onclick: close }, '×'), this.body);
  }

  show(id) {
    this.element.hidden = id === null;
    if (id === null) return;
    const { model } = this;
    const words = model.data.kind === 'diff' ? { same: 'in both', changed: 'in both, with differences', removed: 'only in A', added: 'only in B' } : { same: 'unchanged', changed: 'changed in place', removed: 'gone from the result', added: 'new in the result', between: 'made and replaced during the run' };
    const status = model.status(id);
    fill(this.body,
      h('h3', null, model.op(id)),
      model.before ? h('p', null, h('span', { class: `badge ${status}` }, words[status])) : null,
      h('dl', null, h('dt', null, 'name'), h('dd', { class: 'name' }, model.nameOf(id) || '(none)'),
        h('dt', null, 'graph'), h('dd', null, model.graphOf(id))),
      this.past(id), this.future(id), this.left(id),
      model.sides().filter((side) => side.has(id)).map((side) => this.facts(side, id)));
    this.element.scrollTop = 0;
  }

  link(id) {
    const { model } = this;
    return h('button', { type: 'button', class: `node-link ${model.status(id)}`, 'data-node': id, onclick: () => this.select(id) },
      model.op(id), ' ', h('span', { class: 'name' }, model.nameOf(id)));
  }

  links(ids) {
    const list = (some) => some.map((id) => h('li', null, this.link(id)));
    if (!ids.length) return h('p', { class: 'quiet' }, 'none');
    const rest = ids.slice(MANY);
    return [h('ul', { class: 'links' }, list(ids.slice(0, MANY))),
      rest.length ? h('details', null, h('summary', null, `${rest.length} more`), h('ul', { class: 'links' }, list(rest))) : null];
  }

  rewrite(rewrite) {
    return [h('p', null, h('strong', null, rewrite.pass), ' (', rewrite.number ? `rewrite ${rewrite.number}, ` : '',
      rewrite.level ? `level ${rewrite.level}, step ${rewrite.step}` : 'as the file says', ')'),
    rewrite.why ? h('p', { class: 'why' }, code(rewrite.why)) : null];
  }

  past(id) {
    const made = this.model.madeBy.get(id) || [];
    const changed = this.model.changedBy.get(id) || [];
    const unexplained = !made.length && this.model.status(id) === 'added' && this.model.data.kind === 'run';
    return [
      unexplained ? h('section', { class: 'past' }, h('h4', null, 'Made by'), h('p', null, 'a change of the whole graph, which is no single rewrite: a conversion to another opset, or a weight that went into a function')) : null,
      made.map((rewrite) => h('section', { class: 'past' }, h('h4', null, 'Made by'), this.rewrite(rewrite), h('h4', null, 'from'), this.links(rewrite.before.filter((one) => one !== id)), this.origins(id))),
      changed.map((rewrite) => h('section', { class: 'past' }, h('h4', null, 'Changed by'), this.rewrite(rewrite),
        rewrite.before.some((one) => one !== id) ? [h('h4', null, 'together with'), this.links(rewrite.before.filter((one) => one !== id))] : null))];
  }

  /** The nodes of the original behind a new one, where rewrites followed one another. */
  origins(id) {
    const { model } = this;
    if (!model.before) return null;
    const first = new Set();
    const direct = new Set((model.madeBy.get(id) || []).flatMap((rewrite) => rewrite.before));
    const seen = new Set([id]);
    const pending = [id];
    while (pending.length) {
      for (const rewrite of model.madeBy.get(pending.pop()) || []) {
        for (const one of rewrite.before) {
          if (seen.has(one)) continue;
          seen.add(one);
          if (model.before.has(one)) first.add(one);
          else pending.push(one);
        }
      }
    }
    const more = [...first].filter((one) => !direct.has(one));
    return more.length ? [h('h4', null, `before that, from ${plural(more.length, 'node')} of the original`), this.links(more)] : null;
  }

  future(id) {
    const { model } = this;
    const gone = model.goneBy.get(id) || [];
    if (model.after.has(id)) return null;
    if (!gone.length) {
      return model.before?.has(id) ? h('section', { class: 'future' }, h('h4', null, 'Gone'), h('p', null, this.unread(id))) : null;
    }
    return gone.slice(-1).map((rewrite) => h('section', { class: 'future' },
      h('h4', null, rewrite.swept.includes(id) ? 'No longer needed after' : rewrite.after.length ? 'Replaced by' : 'Removed by'), this.rewrite(rewrite),
      h('h4', null, rewrite.after.length ? 'now' : 'no node takes its place'),
      rewrite.after.length ? this.links(rewrite.after) : null, this.successors(rewrite)));
  }

  unread(id) {
    if (!this.model.rewrites.length) return 'The other model has no node like it.';
    return this.model.op(id) === 'Constant' ? 'Nothing in the result reads it, or it is a weight now.' : 'Nothing in the result needs it.';
  }

  /** What of the result the nodes have become that took its place, where rewrites followed one another. */
  successors(rewrite) {
    const { model } = this;
    const last = new Set();
    const seen = new Set();
    const pending = rewrite.after.filter((id) => !model.after.has(id));
    while (pending.length) {
      const id = pending.pop();
      if (seen.has(id)) continue;
      seen.add(id);
      for (const next of (model.goneBy.get(id) || []).slice(-1)) {
        for (const one of next.after) (model.after.has(one) ? last.add(one) : pending.push(one));
      }
    }
    return last.size ? [h('h4', null, 'in the result'), this.links([...last])] : null;
  }

  left(id) {
    const reasons = this.model.reasons.get(id);
    if (!reasons?.length) return null;
    return h('details', { class: 'reasons' }, h('summary', null, `Why ${plural(reasons.length, 'pass leaves it', 'passes leave it')} as it is`),
      h('ul', null, reasons.map(({ pass, reason, about }) => h('li', null, h('strong', null, pass), `: ${reason}`, about ? h('span', { class: 'quiet' }, ` (${about})`) : null))));
  }

  facts(side, id) {
    const { model } = this;
    const [, inputs, outputs, attributes, metadata] = side.rows.get(id);
    const both = this.model.before?.has(id) && this.model.after.has(id);
    const title = both ? (model.data.kind === 'diff' ? { before: 'In A', after: 'In B' } : { before: 'In the original', after: 'In the result' })[side.name] : 'Inputs and outputs';
    return h('section', null, h('h4', null, title),
      h('ul', { class: 'values' }, inputs.map((at) => this.value(side, at, 'reads', false)), outputs.map((at) => this.value(side, at, 'gives', true))),
      pairs('attributes', attributes), pairs('metadata', metadata));
  }

  value(side, at, verb, readers) {
    if (at < 0) return h('li', { class: 'quiet' }, `${verb}: left out`);
    const [name, type, shape, kind, producer] = side.values[at];
    const users = side.readers.get(at) || [];
    return h('li', null, h('span', { class: 'verb' }, verb), ' ', h('span', { class: 'name' }, name), ' ',
      h('code', null, `${type}${shape}`), kind ? ` ${kind}` : '',
      !readers && producer >= 0 ? [' from ', this.link(producer)] : null,
      readers && users.length ? h('details', null, h('summary', null, `read by ${plural(users.length, 'node')}`), this.links(users)) : null);
  }
}

function pairs(title, list) {
  if (!list.length) return null;
  return h('details', { open: title === 'attributes' }, h('summary', null, title),
    h('dl', null, list.map(([key, text]) => [h('dt', null, key), h('dd', { class: 'name' }, text)])));
}

/** Text with formulas between double backticks. */
export function code(text) {
  return text.split('``').map((part, at) => (at % 2 ? h('code', null, part) : part));
}
