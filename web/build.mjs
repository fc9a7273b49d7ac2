// Bundles src/ into one minified ES module: `node build.mjs OUT`. The same sources give the same bytes.
import { build } from "esbuild";
import { fileURLToPath } from "node:url";

await build({
  absWorkingDir: fileURLToPath(new URL(".", import.meta.url)),
  entryPoints: ["src/bayesbinn.js"],
  outfile: process.argv[2],
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  external: ["node:*"],
  charset: "utf8",
  legalComments: "none",
  banner: { js: "// bayesbinn: built from web/src by `make web`. Apache-2.0." },
});
