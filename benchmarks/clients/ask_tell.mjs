// The TypeScript client of `bench_ask_tell.py`.
import { Client } from "../../clients/typescript/dist/index.js";

const [name, loops] = process.argv.slice(2);
const client = new Client();
const study = client.study(name);

async function run() {
  let done = 0;
  for await (const asked of study.askAll()) {
    await asked.report(1, { loss: asked.params.x });
    done += 1;
  }
  return done;
}

await study.status(); // the connection is there
const began = performance.now();
const trials = (await Promise.all(Array.from({ length: Number(loops) }, run))).reduce((sum, done) => sum + done, 0);
console.log(JSON.stringify({ trials, seconds: (performance.now() - began) / 1000 }));
client.close();
