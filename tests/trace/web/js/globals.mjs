// What a browser has and node lacks, for one test.

const nodes = new Map(); // each global's name, and what it is in node

/** Until the test `t` ends, a global is what the descriptor says: `{ value }`, or `{ get }`. */
export function defineGlobal(t, name, descriptor) {
  if (!nodes.has(name)) nodes.set(name, Object.getOwnPropertyDescriptor(globalThis, name));
  Object.defineProperty(globalThis, name, { configurable: true, ...descriptor });
  t.after(() => nodes.get(name) ? Object.defineProperty(globalThis, name, nodes.get(name)) : delete globalThis[name]);
}
