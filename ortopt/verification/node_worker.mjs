// Runs models in ONNX Runtime for JavaScript: `node node_worker.mjs PACKAGE`, the folder of onnxruntime-web or
// onnxruntime-node. It reads JSON lines and answers each with one; tensors are files of their bytes.
// `ortopt.verification.other_runtimes.NodeSession` is the other side.
import { createRequire } from 'node:module'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const require = createRequire(join(process.argv[2], 'package.json'))
const { name, version } = require('./package.json')
const ort = await import(pathToFileURL(require.resolve(name)))
const { InferenceSession, Tensor, env } = ort.default ?? ort
env.logLevel = 'fatal'
env.wasm.numThreads = 1

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, bool: Uint8Array,
  int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
}
const sessions = []

function tensor({ type, dims, file, texts }) {
  if (type === 'string') return new Tensor('string', texts, dims)
  const kind = ARRAYS[type]
  if (!kind) throw new Error(`there are no tensors of ${type} in ${name}`)
  const bytes = readFileSync(file)
  const data = new kind(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength))
  const isHalf = type === 'float16' && typeof Float16Array !== 'undefined'
  return new Tensor(type, isHalf ? new Float16Array(data.buffer) : data, dims)
}

function stored({ type, dims, data }, file) {
  if (type === 'string') return { type, dims, texts: [...data] }
  writeFileSync(file, new Uint8Array(data.buffer, data.byteOffset, data.byteLength))
  return { type, dims, file }
}

async function answer(request) {
  if (request.model) {
    for (const earlier of sessions.splice(request.number)) await earlier.release()
    const options = { graphOptimizationLevel: request.optimize ? 'all' : 'disabled', logSeverityLevel: 4 }
    if (request.beside.length) {
      options.externalData = request.beside.map(([path, file]) => ({ path, data: readFileSync(file) }))
    }
    const model = name === 'onnxruntime-node' ? request.model : readFileSync(request.model)
    const session = await InferenceSession.create(model, options)
    sessions.push(session)
    return { outputs: session.outputMetadata.map(({ name, type }) => [name, type ?? '']) }
  }
  if (request.feeds) {
    const session = sessions[request.number]
    const feeds = Object.fromEntries(Object.entries(request.feeds).map(([key, value]) => [key, tensor(value)]))
    const started = process.cpuUsage()
    let results
    for (let i = 0; i < request.times; i++) results = await session.run(feeds)
    const { user, system } = process.cpuUsage(started)
    const seconds = (user + system) / 1e6 / request.times
    return { results: session.outputNames.map((key, i) => stored(results[key], `${request.out}${i}`)), seconds }
  }
  return { name, version }
}

for await (const line of createInterface({ input: process.stdin })) {
  let reply
  try {
    reply = await answer(JSON.parse(line))
  } catch (error) {
    reply = { failed: String(error?.message ?? error) }
  }
  process.stdout.write(`\n\u001eortopt ${JSON.stringify(reply)}\n`)
}
