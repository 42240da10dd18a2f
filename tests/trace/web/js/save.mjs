// Saves both runs as the page does, into a folder, for test_page_files.py.

import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { read } from "./runs.mjs";

for (const name of ["first.jsonl", "six.jsonl"]) {
  writeFileSync(join(process.argv[2], name), read(`page/${name}`));
}
