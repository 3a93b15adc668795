/** Ask and tell: a loop over a function of one's own. Run it beside `headrace up`. */
import { asha, Client, float, minimize, space } from "@headrace/client";

const client = new Client();
try {
  const study = await client.createStudy(process.argv[2] ?? "parabola", {
    objective: minimize("loss"),
    space: space({ x: float(-5, 5) }),
    policy: asha({ rungs: [1, 3, 9] }),
    maxTrials: 9,
    maxSteps: 9,
  });
  for await (const asked of study.askAll()) {
    const x = Number(asked.params["x"]);
    for (let step = asked.step + 1; !asked.ended; step += 1) {
      await asked.report(step, { loss: (x - 1) ** 2 + 1 / step });
    }
  }
  const { status } = await study.wait();
  console.log(`best: x = ${status?.best?.parameters?.["x"]}, loss = ${status?.best?.score}`);
} finally {
  client.close();
}
