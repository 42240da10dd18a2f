// Runs a program that was compiled to WebAssembly: node in_node.mjs PROGRAM [ARGUMENTS …].
import { readFile } from "node:fs/promises";
import { argv, exit } from "node:process";
import { WASI } from "node:wasi";

const wasi = new WASI({ version: "preview1", args: argv.slice(2), returnOnExit: true });
const refuse = (at, bytes) => {
  throw new Error(new TextDecoder().decode(new Uint8Array(instance.exports.memory.buffer, at, bytes)));
};
const module = await WebAssembly.compile(await readFile(argv[2]));
const instance = await WebAssembly.instantiate(module, { ...wasi.getImportObject(), cutaway: { refuse } });
exit(wasi.start(instance));
