// Measures llama.cpp on token-id prompts: greedy decoding of one sequence and prefill.
//   node bench.mjs MODEL.gguf jobs.json
// jobs.json: {"threads": [1, 2], "rounds": 3, "decode": [{"kind": "qa", "ids": […], "tokens": 58}], "prefill": [[…]]}
// Prints {"threads": {"1": {"decode": {"qa": tokens/s, …}, "prefill": tokens/s}, …}, "texts": [[ids]…], "version": "…"}.
import {readFileSync} from "node:fs";
import {getLlama} from "node-llama-cpp";

const [, , modelPath, jobsPath] = process.argv;
const jobs = JSON.parse(readFileSync(jobsPath, "utf8"));
const llama = await getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: Math.max(...jobs.threads)});
const model = await llama.loadModel({modelPath, gpuLayers: 0, useMmap: true});
const longest = Math.max(64, ...jobs.prefill.map((p) => p.length + 8), ...jobs.decode.map((d) => d.ids.length + d.tokens + 8));
const result = {threads: {}, texts: [], version: llama.llamaCppRelease?.release ?? "unknown", cpu: llama.systemInfo};

for (const threads of jobs.threads) {
    const context = await model.createContext({contextSize: longest, batchSize: 512, threads, flashAttention: true});
    const sequence = context.getSequence();
    const tokens = {}, seconds = {}, best = {};
    let prefill = 0;
    for (let round = 0; round < jobs.rounds; round++) {
        for (const kind of new Set(jobs.decode.map((d) => d.kind))) {
            tokens[kind] = 0;
            seconds[kind] = 0;
        }
        for (const [index, job] of jobs.decode.entries()) {
            await sequence.clearHistory();
            const out = [];
            let start = 0;
            for await (const token of sequence.evaluate(job.ids, {temperature: 0, yieldEogToken: true})) {
                if (out.length === 0) start = performance.now(); // the first token belongs to prefill
                out.push(token);
                if (out.length >= job.tokens) break;
            }
            tokens[job.kind] += out.length - 1;
            seconds[job.kind] += (performance.now() - start) / 1000;
            if (result.texts.length === index) result.texts.push(out);
        }
        for (const kind of Object.keys(tokens)) best[kind] = Math.max(best[kind] ?? 0, tokens[kind] / seconds[kind]);
        for (const ids of jobs.prefill) {
            await sequence.clearHistory();
            const start = performance.now();
            for await (const _ of sequence.evaluate(ids, {temperature: 0, yieldEogToken: true})) break;
            prefill = Math.max(prefill, ids.length / ((performance.now() - start) / 1000));
        }
    }
    result.threads[threads] = {decode: best, prefill};
    await context.dispose();
}
console.log(JSON.stringify(result));
process.exit(0);
