// The parts of a run's page beside its graphs.
import { bytes, count, error, h, numeric, plural, s, seconds, table } from './dom.js';
import { code } from './panel.js';

const section = (id, title, ...children) => h('section', { id, 'aria-labelledby': `${id}-title` }, h('h2', { id: `${id}-title` }, title), children);

const change = (before, after, shown = count) => {
  const difference = after - before;
  const percent = Math.abs((100 * difference) / before).toFixed(0);
  const share = before ? ` (${percent === '0' ? 'under 1' : `${difference > 0 ? '+' : '−'}${percent}`} %)` : '';
  return [numeric(shown(before)), numeric(shown(after)), numeric(difference ? `${difference > 0 ? '+' : '−'}${shown(Math.abs(difference))}${share}` : '')];
};

const card = (value, label, kind) => h('div', { class: `card ${kind || ''}` }, h('strong', null, value), h('span', null, label));

export function verdict(report) {
  const { verification } = report;
  if (report.error) return ['bad', report.error];
  if (!verification) return ['unknown', 'not verified: it was not asked for'];
  if (verification.status === 'verified') return ['good', `the same numbers on ${plural(verification.input_sets, 'input set')}`];
  return [verification.status === 'differs' ? 'bad' : 'unknown', `${verification.status}${verification.reason ? `: ${verification.reason}` : ''}`];
}

export function summary(report) {
  const [kind, words] = verdict(report);
  const { nodes, file_bytes: file, constant_bytes: constants } = report;
  const sizes = [['nodes', ...change(nodes.before, nodes.after)], ['initializers', ...change(report.initializers.before, report.initializers.after)],
    ['constants', ...change(constants.before, constants.after, bytes)]];
  if (report.functions.before || report.functions.after) sizes.push(['functions', ...change(report.functions.before, report.functions.after)]);
  if (file.before !== null && file.after !== null) sizes.push(['file', ...change(file.before, file.after, bytes)]);
  const needs = needed(report);
  return section('summary', 'Summary',
    h('div', { class: 'cards' },
      card(`${count(nodes.before)} → ${count(nodes.after)}`, 'nodes'),
      card(count(report.rewrites), report.rewrites === 1 ? 'rewrite offered' : 'rewrites offered'),
      card(file.before !== null && file.after !== null ? `${bytes(file.before)} → ${bytes(file.after)}` : bytes(constants.after), file.after !== null ? 'file' : 'constants'),
      card(seconds(Object.values(report.seconds).reduce((sum, one) => sum + one, 0)), 'in all'),
      card(kind === 'good' ? 'verified' : kind === 'bad' ? 'failed' : 'not verified', words, kind)),
    h('div', { class: 'columns' },
      h('div', null, h('h3', null, 'Sizes'), table(['', 'before', 'after', 'change'], sizes),
        (report.larger || []).map((why) => h('p', null, h('strong', null, 'Larger: '), why)),
        h('p', null, h('strong', null, 'Needs: '), needs),
        ports(report.interface || []),
        costs(report.costs),
        settings(report.tuning),
        blocks(report.blocks)),
      h('div', null, h('h3', null, 'Nodes by op'), byOp(nodes.by_op))),
    options(report.options));
}

/** What settings of a session give beside the file, as tuning has measured it. */
function settings(tuning) {
  const recipe = tuning && tuning.recipe;
  if (!recipe || !recipe.levers.length) return null;
  const ratios = (speeds) => speeds.map(({ low, median, high }) => `${median.toFixed(2)} (${low.toFixed(2)} to ${high.toFixed(2)})`).join('; ') || '–';
  return [h('h3', null, 'Settings of the session'), table(['setting', 'times as fast', ''], recipe.levers.map((row) => [row.lever, ratios(row.speeds), row.kept ? 'taken' : row.why_not])),
    recipe.together ? h('p', null, `Together: ${ratios(recipe.together)} times as fast.`) : null,
    recipe.python.length ? h('pre', null, recipe.python.join('\n')) : null];
}

/** What has become of inputs and outputs. */
function ports(rows) {
  if (!rows.length) return null;
  const declared = ({ type, shape }) => `${type || 'unknown'} [${shape === null ? '…' : shape.map((size) => size ?? '?').join(', ')}]`;
  const cell = (one) => (one ? `${one.name}: ${declared(one)}` : 'left out');
  return [h('h3', null, 'Inputs and outputs'), table(['', 'before', 'after', 'goes through'], rows.map((row) => [row.kind, cell(row.before), cell(row.after), row.left.join(', ')]))];
}

/** What the result needs to be loaded, and what in it needs that. */
function needed({ requires, opset }) {
  const because = (requires.because || []).join(', ');
  const raised = opset && opset.before !== null && opset.before !== opset.after && because === `opset ${opset.after}` ? `, raised from ${opset.before}` : '';
  if (requires.onnxruntime === null) return `a runtime that has ${requires.ops.join(', ')}`;
  const first = `ONNX Runtime ${requires.onnxruntime} or newer${because && `, for ${because}${raised}`}`;
  return requires.any_runtime ? `any runtime that has its opset (${first})` : `${first}; it has ops of ONNX Runtime's own: ${requires.ops.join(', ')}`;
}

function costs(decided) {
  if (!decided) return null;
  const named = ({ table, sha256 }) => `${table} (sha256 ${sha256.slice(0, 16)})`;
  const over = decided.over ? ` over ${named(decided.over)}` : '';
  return h('p', null, h('strong', null, 'Table of costs: '), `${named(decided)}${over}`);
}

function blocks(families) {
  const rows = Object.entries(families || {}).filter(([, { after }]) => after.fused + after.spelled_out).map(([name, { before, after }]) =>
    [name, numeric(`${before.fused} of ${before.fused + before.spelled_out}`), numeric(`${after.fused} of ${after.fused + after.spelled_out}`)]);
  return rows.length ? [h('h3', null, 'Blocks that are one op'), table(['', 'before', 'after'], rows)] : null;
}

export function byOp(ops) {
  const rank = ([op, { before, after }]) => [-Math.abs(after - before), -before, op];
  const rows = Object.entries(ops).sort((a, b) => { const [x, y] = [rank(a), rank(b)]; return x[0] - y[0] || x[1] - y[1] || (x[2] < y[2] ? -1 : 1); })
    .map(([op, { before, after }]) => [op, ...change(before, after)]);
  const most = 12;
  const headers = ['op', 'before', 'after', 'change'];
  return [table(headers, rows.slice(0, most)), rows.length > most ? h('details', null, h('summary', null, `${rows.length - most} more ops`), table(headers, rows.slice(most))) : null];
}

function options(given) {
  if (!given) return null;
  const rows = Object.entries(given).filter(([, value]) => value !== null && value !== false && !(Array.isArray(value) && !value.length) && !(typeof value === 'object' && !Array.isArray(value) && !Object.keys(value).length))
    .map(([name, value]) => [name, typeof value === 'object' ? JSON.stringify(value) : String(value)]);
  return h('details', null, h('summary', null, 'Options of the run'), table(['option', 'value'], rows));
}

const WIDTH = 1000;
const HEIGHT = 170;

/** Runs of passes one after the other, as wide as they took; above them, how many nodes there are. */
export function timeline(data) {
  const { history } = data;
  if (!history?.length) return null;
  const total = history.reduce((sum, [, , , , took]) => sum + took, 0) || 1;
  const main = history.filter((entry) => entry[3] === history[0][3]);
  const most = Math.max(...main.map((entry) => Math.max(entry[5], entry[6])), 1);
  let now = 0;
  const bars = [];
  let line = `M0,${10 + 90 * (1 - main[0][5] / most)}`;
  for (const [level, step, pass, graph, took, before, after, rewrites] of history) {
    const x = (now / total) * WIDTH;
    const width = Math.max((took / total) * WIDTH, 0.4);
    now += took;
    bars.push(s('rect', { class: `bar level-${level}${rewrites ? ' busy' : ''}`, x, y: 112, width, height: 34 },
      s('title', null, `${pass}: level ${level}, step ${step}, graph ${graph}\n${plural(rewrites, 'rewrite')}, ${seconds(took)}, ${before} → ${after} nodes`)));
    if (graph === history[0][3]) line += `L${((now / total) * WIDTH).toFixed(2)},${(10 + 90 * (1 - after / most)).toFixed(2)}`;
  }
  const busy = history.filter((entry) => entry[7]);
  const rows = busy.map(([level, step, pass, graph, took, before, after, rewrites]) => [level, step, pass, graph, rewrites, numeric(before === after ? count(after) : `${count(before)} → ${count(after)}`), numeric(seconds(took))]);
  return section('timeline', 'Timeline',
    h('p', { class: 'quiet' }, `${plural(history.length, 'run')} of passes in ${seconds(total)}, ${plural(busy.length, 'of them with a rewrite', 'of them with rewrites')}. The line is the number of nodes; bars are passes, coloured by level, solid where they rewrote something.`),
    s('svg', { class: 'timeline', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${main[0][5]} nodes become ${main[main.length - 1][6]}` },
      s('path', { class: 'nodes-line', d: line }), bars),
    h('ul', { class: 'legend' }, [...new Set(history.map((entry) => entry[0]))].sort().map((level) => h('li', null, h('span', { class: `swatch level-${level}` }), `level ${level}`)),
      h('li', null, `from ${count(main[0][5])} to ${count(main[main.length - 1][6])} nodes`)),
    h('details', null, h('summary', null, 'Runs that rewrote something, in order'), table(['level', 'step', 'pass', 'graph', 'rewrites', 'nodes', 'time'], rows)));
}

/** Rewrites by pass; a list is made when it is opened. */
export function rewrites(model, report, link) {
  const byPass = new Map();
  for (const rewrite of model.rewrites) byPass.set(rewrite.pass, [...(byPass.get(rewrite.pass) || []), rewrite]);
  const totals = new Map((report?.passes || []).map((total) => [total.pass, total]));
  const ranked = [...byPass].sort((a, b) => b[1].length - a[1].length || (a[0] < b[0] ? -1 : 1));
  const idle = [...totals.values()].filter((total) => !byPass.has(total.pass));
  return section('rewrites', 'Rewrites by pass',
    ranked.length ? null : h('p', { class: 'quiet' }, 'No rewrite was recorded.'),
    ranked.map(([pass, list]) => {
      const took = totals.get(pass)?.seconds;
      const details = h('details', { class: 'pass' }, h('summary', null, h('strong', null, pass), ` ${plural(list.length, 'rewrite')}`, took === undefined ? '' : h('span', { class: 'quiet' }, ` ${seconds(took)}`)));
      details.addEventListener('toggle', () => { if (details.open && !details.querySelector('table')) details.append(rewriteTable(list, link)); });
      return details;
    }),
    idle.length ? h('p', { class: 'quiet' }, `${plural(idle.length, 'more pass', 'more passes')} had nothing to do (${seconds(idle.reduce((sum, total) => sum + total.seconds, 0))}): ${idle.map((total) => total.pass).join(', ')}`) : null);
}

const MOST_ROWS = 300;

function rewriteTable(list, link) {
  const some = (ids) => [ids.slice(0, 6).map((id) => [link(id), ' ']), ids.length > 6 ? `and ${ids.length - 6} more` : null];
  const purposes = new Set(list.map((rewrite) => rewrite.why));
  const rows = list.slice(0, MOST_ROWS).map((rewrite) => [rewrite.number, h('span', null, some(rewrite.before)), h('span', null, rewrite.after.length ? some(rewrite.after) : 'nothing'), ...(purposes.size > 1 ? [h('span', null, code(rewrite.why))] : [])]);
  return h('div', null, purposes.size === 1 ? h('p', { class: 'why' }, code([...purposes][0])) : null,
    table(['rewrite', 'from', 'to', ...(purposes.size > 1 ? ['why'] : [])], rows),
    list.length > MOST_ROWS ? h('p', { class: 'quiet' }, `${list.length - MOST_ROWS} more; each node says which rewrite it was`) : null);
}

export function verification(report) {
  const outcome = report.verification;
  const repairs = report.repairs || [];
  if (!outcome) return section('verification', 'Verification', h('p', null, 'It was not asked for.'));
  const rows = outcome.outputs.map((one) => [h('span', { class: 'name' }, one.name), one.agrees ? 'agrees' : one.shown === false ? 'tells nothing' : 'differs', ...[one.worst, one.tolerance, one.noise, one.absolute, one.relative, one.mean].map((value) => numeric(error(value))),
    one.index ? `at [${one.index}]: ${one.expected} became ${one.got}` : '', [one.detail, one.local_detail].filter(Boolean).join('; ')]);
  return section('verification', 'Verification',
    h('p', null, h('span', { class: `badge ${verdict(report)[0]}` }, verdict(report)[1]), report.verified_on?.length ? ` Run on ${report.verified_on.map((one) => one.replace('ExecutionProvider', '')).join(', ')}. ` : ' ',
      outcome.random ? 'Outputs are random: only types and shapes were compared. ' : '', outcome.seconds ? `It took ${seconds(outcome.seconds)}.` : ''),
    asDeployed(report),
    elsewhere(outcome),
    rows.length ? table(['output', 'result', 'worst error', 'tolerance', 'own noise', 'absolute', 'relative', 'mean', 'worst element', 'remarks'], rows) : null,
    rows.length ? h('p', { class: 'quiet' }, 'Errors are relative to the scale of the output; “own noise” is how far the original’s own numbers move with rounding.') : null,
    repairs.length ? [h('h3', null, 'Repairs'), h('ul', null, repairs.map((one) => h('li', null, h('strong', null, one.pass), ` rewrite ${one.rewrite}: ${one.reason}; ${one.left_out === 'pass' ? 'the pass' : 'the rewrite'} was left out`)))] : null);
}

const DEFAULTS = "ONNX Runtime's default optimizations"; // as the reasons beside it spell it

/** How the result compares as ONNX Runtime loads it by default, or why that is not known; and what only these optimizations break. */
function asDeployed({ verification: outcome, half_precision: half }) {
  const { as_deployed: agrees, not_as_deployed: reason } = outcome;
  const known = typeof agrees === 'boolean';
  if (!known && !reason && outcome.status !== 'verified' && outcome.status !== 'not shown') return null; // it is wrong, or unknown, without them
  const [kind, words] = agrees ? ['good', `also run with ${DEFAULTS}, and agrees`]
    : known ? ['bad', `differs with ${DEFAULTS}`]
      : reason ? ['unknown', `not compared with ${DEFAULTS}`] : ['', `not run with ${DEFAULTS}`];
  const why = !known && !reason && half ? ' It was compared as copies that compute in float32 and are rounded.' : null;
  return [h('p', { class: 'deployed' }, h('strong', null, 'As deployed: '), h('span', { class: `badge ${kind}` }, words), why),
    reason ? h('p', { class: 'deployed' }, h('span', { class: 'badge unknown' }, 'warning'), ` ${reason}`) : null];
}

/** How the result compares on the other runtimes that were asked for. */
function elsewhere({ elsewhere: runtimes }) {
  const said = (agrees) => (agrees === null ? ['unknown', 'not compared'] : agrees ? ['good', 'also run there, and agrees'] : ['bad', 'differs']);
  return (runtimes || []).map(({ runtime, agrees, reason }) => h('p', { class: 'elsewhere' }, h('strong', null, `On ${runtime}: `),
    h('span', { class: `badge ${said(agrees)[0]}` }, said(agrees)[1]), reason ? ` ${reason}` : null));
}

export function left(data, link) {
  const report = data.report || {};
  const declined = report.costs?.declined || [];
  const parts = [
    (report.failures || []).length ? [h('h3', null, 'Passes that failed'), h('ul', null, report.failures.map((one) => h('li', null, h('strong', null, one.pass), ` (level ${one.level}, step ${one.step}, graph ${one.graph}): ${one.reason}`)))] : null,
    declined.length ? [h('h3', null, 'Fused ops that were not worth it'), table(['pass', 'op', 'provider', 'verdict', 'speed', 'instead of', 'candidates'], declined.map((one) =>
      [one.pass, `${one.op} ${one.variant}`.trim(), one.provider.replace('ExecutionProvider', ''), one.verdict, one.speed ? [...new Set(one.speed)].map((x) => `${x.toPrecision(2)}×`).join(' to ') : 'not measured', one.instead_of, one.count]))] : null,
    (report.too_large || []).length ? [h('h3', null, 'What would have made the file too large'), h('ul', null, report.too_large.map((one) => h('li', null, h('strong', null, one.pass), `: ${plural(one.count, 'candidate')}, ${bytes(one.bytes)}`)))] : null,
    (report.shape_arithmetic || []).length ? [h('h3', null, 'Shape arithmetic'), table(['node', 'op', 'graph', 'needed by', 'why'], report.shape_arithmetic.map((one) =>
      [h('span', { class: 'name' }, one.node), one.op, one.graph, one.needed_by ? h('span', { class: 'name' }, `${one.needed_by.op} ${one.needed_by.node}`) : '', one.why]))] : null,
    refusals(data.refusals || [], link)];
  if (!parts.some((part) => part && part.length !== 0)) return null;
  return section('left', 'What is left, and why', parts);
}

function refusals(list, link) {
  if (!list.length) return null;
  const byPass = new Map();
  for (const row of list) byPass.set(row[0], [...(byPass.get(row[0]) || []), row]);
  const total = (rows) => rows.reduce((sum, row) => sum + row[2].length, 0);
  const ranked = [...byPass].sort((a, b) => total(b[1]) - total(a[1]));
  return [h('h3', null, 'Candidates that passes left as they are'),
    h('p', { class: 'quiet' }, 'Each pass looks at many nodes that it has nothing to do with; its reason is the first condition that was not met.'),
    ranked.map(([pass, rows]) => {
      const details = h('details', { class: 'pass' }, h('summary', null, h('strong', null, pass), ` ${plural(total(rows), 'node')}`));
      details.addEventListener('toggle', () => {
        if (!details.open || details.querySelector('ul')) return;
        details.append(h('ul', null, rows.map(([, reason, where]) => h('li', null, `${where.length}: ${reason} `, where.slice(0, 8).map(([id]) => [link(id), ' ']), where.length > 8 ? `and ${where.length - 8} more` : null))));
      });
      return details;
    })];
}

export function profile(taken) {
  if (!taken) return null;
  const sides = [['original', 'Original'], ['result', 'Result']].filter(([key]) => taken[key]?.length);
  if (!sides.length) return null;
  const row = ({ op, count: calls, ms, share }) => [op, calls ?? '', numeric(typeof ms === 'number' ? `${ms.toFixed(3)} ms` : ''),
    h('span', { class: 'share' }, s('svg', { viewBox: '0 0 100 8', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, s('rect', { width: 100 * (share || 0), height: 8 })), `${(100 * (share || 0)).toFixed(1)} %`)];
  return section('profile', 'Profile', h('p', { class: 'quiet' }, 'Time under ONNX Runtime, by op.'),
    (taken.measured_with || []).map((line) => h('p', null, line)),
    h('div', { class: 'columns' }, sides.map(([key, title]) => h('div', null, h('h3', null, title), table(['op', 'calls', 'time', 'share'], taken[key].map(row))))));
}
