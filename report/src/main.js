// Starts the page: decodes the data, and shows what kind of page it is.
import { index } from './check.js';
import { differences } from './diff.js';
import { fill, h } from './dom.js';
import { Explorer } from './explorer.js';
import { decode, Model } from './model.js';
import { left, profile, rewrites, summary, timeline, verdict, verification } from './sections.js';

const THEMES = ['auto', 'light', 'dark'];

function themeButton() {
  let theme = 'auto';
  try { theme = localStorage.getItem('ortopt-theme') || 'auto'; } catch { /* a page from a file may have no storage */ }
  const button = h('button', { type: 'button', class: 'theme' });
  const apply = () => {
    document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  button.addEventListener('click', () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try { localStorage.setItem('ortopt-theme', theme); } catch { /* it holds for this page only */ }
    apply();
  });
  apply();
  return button;
}

function frame(page, title, subtitle, sections) {
  const parts = sections.flat().filter(Boolean);
  const titled = parts.filter((part) => part.id && part.querySelector('h2'));
  fill(page,
    h('header', null, h('div', null, h('h1', null, title), subtitle), themeButton()),
    titled.length > 1 ? h('nav', { 'aria-label': 'Sections' }, titled.map((part) => h('a', { href: `#${part.id}` }, part.querySelector('h2').textContent))) : null,
    parts, h('footer', null, `Made by ortopt ${page.dataset.version}.`));
}

function run(page, data) {
  const model = new Model(data);
  const explorer = new Explorer(model);
  const link = (id) => explorer.panel.link(id);
  const select = explorer.select.bind(explorer);
  explorer.panel.select = (id) => { select(id); if (!explorer.panel.element.contains(document.activeElement)) explorer.element.scrollIntoView({ block: 'start' }); };
  const [kind, words] = data.report ? verdict(data.report) : ['', ''];
  const subtitle = h('p', null, words ? h('span', { class: `badge ${kind}` }, words) : null);
  const sections = data.kind === 'diff'
    ? [...differences(data.diff), explorer.element, model.rewrites.length ? rewrites(model, null, link) : null]
    : [summary(data.report), explorer.element, timeline(data), rewrites(model, data.report, link), verification(data.report), left(data, link), profile(data.profile)];
  frame(page, data.title, subtitle, sections);
  explorer.start();
  window.ortopt = { explorer }; // for tests and the console
}

async function start() {
  const page = document.getElementById('page');
  try {
    const data = await decode(document.getElementById('data').textContent);
    page.dataset.version = data.ortopt;
    if (data.kind === 'check') frame(page, data.title, h('p', null, data.subtitle), index(data));
    else run(page, data);
  } catch (problem) {
    fill(page, h('p', { class: 'badge bad' }, `The page cannot be shown: ${problem.message}`));
    throw problem;
  } finally {
    page.setAttribute('aria-busy', 'false');
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  }
}

start();
