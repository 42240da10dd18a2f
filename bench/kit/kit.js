// Tries a browser's GPU: arithmetic, a model's bits, times. What run.py does on all of a machine's adapters.
import { examine as findingsOf } from "./probe.js";
import { Recording } from "./recording.js";

const WAYS = new URLSearchParams(location.search).get("fused")?.split(",") ?? ["native", "int"]; // browsers have no f64
const FILL = 0x2c2c2c2c; // of a matrix that is timed: small numbers, whatever they mean

/** @param {string} line */
function print(line) {
  document.querySelector("pre").append(`${line}\n`);
}

const hex = (buffer) => [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** A recording of the kit: its document, and its bytes. */
async function load(name) {
  const [description, data] = await Promise.all([
    fetch(`${name}.json`).then((answer) => answer.json()), fetch(`${name}.bin`).then((answer) => answer.arrayBuffer()),
  ]);
  return [description, new Uint8Array(data)];
}

async function open(device, name, fused, fill = 0) {
  const recording = new Recording(device, ...(await load(name)));
  await recording.prepare(fused, false, fill);
  return recording;
}

/** Prints of each operation how many results differ; whether none does that has no denormal. */
async function examine(device, fused) {
  const findings = await findingsOf(device, ...(await load("probe")), fused);
  for (const { name, asked, wrong, normal } of findings) {
    print(`    ${name.padEnd(16)} ${wrong ? `${wrong} of ${asked} differ, ${normal} of them without denormals` : "equal"}`);
  }
  const isRight = findings.every(({ normal }) => !normal);
  if (isRight && findings.some(({ wrong }) => wrong)) print("    denormals are flushed");
  return isRight;
}

/** Prints which of the model's steps have the CPU's logits; whether all have. */
async function compare(device, fused) {
  const replay = await open(device, "model", fused);
  const others = [];
  for (const step of replay.document.steps) {
    replay.run(step);
    const hash = hex(await crypto.subtle.digest("SHA-256", await replay.read(step.read)));
    if (hash !== step.sha256) others.push(step.name);
  }
  print(`    model: ${replay.document.steps.length - others.length} of ${replay.document.steps.length} steps have the CPU's bits` + others.map((name) => `; not ${name}`).join(""));
  return !others.length;
}

/** Prints what a dispatch costs, and how fast one matrix is read and multiplied. */
async function time(device, fused) {
  const replay = await open(device, "times", fused, FILL);
  const least = async (step, launches) => {
    const seconds = [];
    for (let i = 0; i < 4; i++) {
      const started = performance.now();
      replay.run(step, launches);
      await replay.read([...step.read.slice(0, 2), 4]);
      seconds.push((performance.now() - started) / 1e3);
    }
    return Math.min(...seconds);
  };
  const [many, one] = replay.document.steps;
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
