// Runs a program that was compiled to WebAssembly: node --single-threaded in_node.mjs PROGRAM [ARGUMENTS …].
// Without that flag Node 20 may end, when all is printed, by a fault in a thread of its own.
import { readFile } from "node:fs/promises";
import process, { argv } from "node:process";
import { WASI } from "node:wasi";

const wasi = new WASI({ version: "preview1", args: argv.slice(2), returnOnExit: true });
const refuse = (at, bytes) => {
  throw new Error(new TextDecoder().decode(new Uint8Array(instance.exports.memory.buffer, at, bytes)));
};
const module = await WebAssembly.compile(await readFile(argv[2]));
const instance = await WebAssembly.instantiate(module, { ...wasi.getImportObject(), cutaway: { refuse } });
process.exitCode = wasi.start(instance);
