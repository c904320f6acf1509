// Builds what the page needs into one script, with a list of what is in it: `make report-assets`.
import { createHash } from 'node:crypto';
import { readFileSync, writeFileSync, mkdirSync } from 'node:fs';
import { build, transform } from 'esbuild';

const out = '../ortopt/reporting/page/assets';
mkdirSync(out, { recursive: true });

const bundle = await build({
  entryPoints: ['src/main.js'],
  bundle: true,
  minify: true,
  format: 'iife',
  target: 'es2020',
  charset: 'ascii',
  legalComments: 'none', // licences stand in LICENSES.txt
  metafile: true,
  write: false,
});
const script = bundle.outputFiles[0].text;
if (/<\/script|<!--/i.test(script)) throw new Error('the script would end the element that it stands in');
const style = (await transform(readFileSync('src/report.css', 'utf8'), { loader: 'css', minify: true })).code;

const names = new Set();
for (const path of Object.keys(bundle.metafile.inputs)) {
  const found = path.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (found) names.add(found[1]);
}
const libraries = [...names].sort().map((name) => {
  const { version, license, homepage } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, 'utf8'));
  return { name, version, license, homepage };
});
const licences = libraries.map(({ name, version, license }) =>
  `${name} ${version} (${license})\n\n${readFileSync(`node_modules/${name}/LICENSE`, 'utf8').trim()}\n`);

const files = { 'report.js': script, 'report.css': style, 'LICENSES.txt': licences.join(`\n${'-'.repeat(80)}\n\n`) };
const hashes = {};
for (const [name, text] of Object.entries(files)) {
  writeFileSync(`${out}/${name}`, text);
  hashes[name] = createHash('sha256').update(text, 'utf8').digest('hex');
}
const manifest = { builder: `esbuild ${JSON.parse(readFileSync('node_modules/esbuild/package.json')).version}`, libraries, sha256: hashes };
writeFileSync(`${out}/manifest.json`, `${JSON.stringify(manifest, null, 2)}\n`);
console.log(`report.js ${script.length} bytes, report.css ${style.length} bytes`);
