// Tries a browser's GPU: arithmetic, a model's bits, times. What run.py does on all of a machine's adapters.
import { Replay } from "./gpu-replay.js";

const WAYS = new URLSearchParams(location.search).get("fused")?.split(",") ?? ["native", "int"]; // browsers have no f64
const FILL = 0x2c2c2c2c; // of a matrix that is timed: small numbers, whatever they mean

/** @param {string} line */
function print(line) {
  document.querySelector("pre").append(`${line}\n`);
}

const words = (bytes) => new Uint32Array(bytes.slice().buffer);
const hex = (buffer) => [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** Prints of each operation how many results differ; whether none does that has no denormal. */
async function examine(device, fused) {
  const replay = await Replay.load(device, "probe", fused);
  let isRight = true, flushes = false;
  for (const step of replay.steps) {
    replay.run(step);
    const results = words(await replay.read(step));
    const right = words(replay.bytes(step.right));
    const kinds = replay.bytes(step.kinds); // 0: not asked; 2: with a denormal
    let asked = 0, wrong = 0, normal = 0;
    for (let i = 0; i < results.length; i++) {
      if (!kinds[i]) continue;
      asked += 1;
      if (results[i] === right[i] || (step.ignores_sign && !((results[i] | right[i]) & 0x7fffffff))) continue;
      wrong += 1;
      normal += kinds[i] === 1 ? 1 : 0;
    }
    if (normal) isRight = false;
    if (wrong > normal) flushes = true;
    print(`    ${step.name.padEnd(16)} ${wrong ? `${wrong} of ${asked} differ, ${normal} of them without denormals` : "equal"}`);
  }
  if (isRight && flushes) print("    denormals are flushed");
  return isRight;
}

/** Prints which of the model's steps have the CPU's logits; whether all have. */
async function compare(device, fused) {
  const replay = await Replay.load(device, "model", fused);
  const others = [];
  for (const step of replay.steps) {
    replay.run(step);
    const hash = hex(await crypto.subtle.digest("SHA-256", await replay.read(step)));
    if (hash !== step.sha256) others.push(step.name);
  }
  print(`    model: ${replay.steps.length - others.length} of ${replay.steps.length} steps have the CPU's bits` + others.map((name) => `; not ${name}`).join(""));
  return !others.length;
}

/** Prints what a dispatch costs, and how fast one matrix is read and multiplied. */
async function time(device, fused) {
  const replay = await Replay.load(device, "times", fused, FILL);
  const least = async (step, launches) => {
    const seconds = [];
    for (let i = 0; i < 4; i++) {
      const started = performance.now();
      replay.run(step, launches);
      await replay.read(step, 4);
      seconds.push((performance.now() - started) / 1e3);
    }
    return Math.min(...seconds);
  };
  const [many, one] = replay.steps;
  const tiny = one.launches[1];
  const idle = await least(one, [tiny]);
  print(`    submit and read back ${(idle * 1e3).toFixed(2)} ms; a dispatch ${((await least(one, Array(1001).fill(tiny)) - idle) * 1e3).toFixed(2)} µs`);
  for (const [step, amount, name, repeats] of [[one, one.bytes / 1e9, "GB/s", 16], [many, many.products / 1e12, "TMAC/s", 2]]) {
    const matrix = step.launches[0];
    const longer = (await least(step, Array(repeats + 1).fill(matrix))) - (await least(step, [matrix]));
    print(`    ${step.rows} rows ${((amount * repeats) / longer).toFixed(3)} ${name}`);
  }
}

async function main() {
  if (!navigator.gpu) return print("This browser has no WebGPU, or not for this address: open it over https or at localhost."), false;
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) return print("WebGPU finds no adapter."), false;
  const { vendor, architecture, device: card, description, isFallbackAdapter } = adapter.info;
  print([vendor, architecture, card, description].filter(Boolean).join(" | "));
  const isSoftware = isFallbackAdapter || /swiftshader|llvmpipe/i.test(`${architecture} ${card} ${description}`);
  if (isSoftware) print("  a software driver, not a card: no times");
  const device = await adapter.requestDevice();
  device.addEventListener("uncapturederror", (event) => print(`  error: ${event.error.message}`));
  let isRight = false;
  for (const fused of WAYS) {
    print(`  multiply-add by ${fused}:`);
    if (!(await examine(device, fused))) {
      print("    so it cannot be used");
      continue;
    }
    isRight = (await compare(device, fused)) || isRight;
    if (!isSoftware) await time(device, fused);
  }
  return isRight;
}

main().catch((error) => (print(String(error)), false)).then((isRight) => {
  print(isRight ? "This GPU has the CPU's bits." : "This GPU has other bits than the CPU, or could not be tried.");
  document.title = isRight ? "same bits" : "other bits";
});
