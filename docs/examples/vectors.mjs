// Holds an attention against the test vectors: node vectors.mjs FOLDER. It needs Node alone.
import { readFileSync } from "node:fs";
import { join } from "node:path";

const READERS = {
  float64: (view, at) => view.getFloat64(at, true),
  float32: (view, at) => view.getFloat32(at, true),
  float16: (view, at) => half(view.getUint16(at, true)),
  int64: (view, at) => Number(view.getBigInt64(at, true)),
  bool: (view, at) => view.getUint8(at),
  bfloat16: (view, at) => {
    const whole = new DataView(new ArrayBuffer(4));
    whole.setUint16(2, view.getUint16(at, true), true);
    return whole.getFloat32(0, true);
  },
};

function half(bits) {
  const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
}

function read(file, { dtype, shape, offset, bytes }) {
  const view = new DataView(file.buffer, file.byteOffset + offset, bytes);
  const count = shape.reduce((product, size) => product * size, 1);
  const values = Float64Array.from({ length: count }, (_, i) => READERS[dtype](view, (i * bytes) / count));
  return (...index) => // an axis of size 1 has one element for all
    values[shape.reduce((place, size, axis) => place * size + (size === 1 ? 0 : index[axis]), 0)];
}

function row(c, t, b, h, i) { // the answer of one query: put your own in its place
  const { keys, head_size, value_head_size, heads, kv_heads } = c.sizes;
  const g = Math.floor(h / (heads / kv_heads)), [left, right] = c.window ?? [-1, -1], form = c.mask?.form;
  const scores = Array.from({ length: keys }, (_, j) => {
    let score = 0;
    for (let d = 0; d < head_size; d++) score += t.query(b, h, i, d) * t.key(b, g, j, d);
    score *= c.scale;
    if (c.softcap !== null) score = c.softcap * Math.tanh(score / c.softcap);
    const ahead = j - i - c.diagonal, mask = form && t.mask(b, h, i, j);
    const hidden = (c.causal && ahead > 0) || (left >= 0 && ahead < -left) || (right >= 0 && ahead > right)
      || (form === "keep" && mask === 0) || (form === "drop" && mask === 1) || (form === "lengths" && j >= mask);
    return hidden ? -Infinity : form === "bias" ? score + mask : score;
  });
  const largest = Math.max(...scores);
  const weights = scores.map((score) => (largest === -Infinity ? 0 : Math.exp(score - largest)));
  const total = weights.reduce((sum, weight) => sum + weight, 0) || 1;
  return Array.from({ length: value_head_size }, (_, d) =>
    weights.reduce((sum, weight, j) => sum + (weight / total) * t.value(b, g, j, d), 0));
}

function passes(folder, entry) {
  const c = JSON.parse(readFileSync(join(folder, entry.file), "utf8"));
  const file = readFileSync(join(folder, "cases", c.data.file));
  const t = Object.fromEntries(Object.entries(c.tensors).map(([name, place]) => [name, read(file, place)]));
  const { batch, heads, queries } = c.sizes;
  for (let b = 0; b < batch; b++) for (let h = 0; h < heads; h++) for (let i = 0; i < queries; i++) {
    const wrong = row(c, t, b, h, i).some((answer, d) =>
      (t.judged(b, h, i, d) || t.empty(b, h, i, d))
      && !(Math.abs(answer - t.expected(b, h, i, d)) <= t.bound(b, h, i, d)));
    if (wrong) return false;
  }
  return true;
}

const folder = process.argv[2], { cases } = JSON.parse(readFileSync(join(folder, "index.json"), "utf8"));
const failed = cases.filter((entry) => !passes(folder, entry)).map((entry) => entry.id);
console.log([`${cases.length - failed.length} of ${cases.length} cases pass`, ...failed.slice(0, 20)].join("\n"));
process.exit(failed.length ? 1 : 0);
