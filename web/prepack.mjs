// Gathers the package's files: `node prepack.mjs [FOLDER]`, by default dist/. npm runs it before it packs.
import { cpSync, mkdirSync, rmSync } from "node:fs";
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { join } from "node:path";

const here = fileURLToPath(new URL(".", import.meta.url));
const folder = process.argv[2] ?? join(here, "dist");
rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
cpSync(join(here, "../LICENSE"), join(folder, "LICENSE"));
for (const name of ["bayesbinn.js", "bayesbinn.wasm"])
  cpSync(join(here, "../src/bayesbinn/web", name), join(folder, name));
const compiler = join(here, "node_modules/typescript/bin/tsc");
const types = join(here, "tsconfig.types.json");
execFileSync(process.execPath, [compiler, "--project", types, "--outDir", folder], { stdio: "inherit" });
