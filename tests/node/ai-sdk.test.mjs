import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, jsonSchema, Output, stepCountIs, streamText, tool } from 'ai';
import { greeting, key, long, model, timeout, url, weatherParameters } from './setup.mjs';

// One model a wire: chat completions, Responses, Messages.
const wires = {
  chat: createOpenAICompatible({ name: 'tandem', baseURL: `${url}/v1`, apiKey: key, includeUsage: true, supportsStructuredOutputs: true })(model),
  responses: createOpenAI({ baseURL: `${url}/v1`, apiKey: key }).responses(model),
  messages: createAnthropic({ baseURL: `${url}/v1`, apiKey: key })(model),
};
// Thinking is asked for in each provider's own words.
const thinking = {
  tandem: { reasoningEffort: 'low' },
  openai: { reasoningEffort: 'low', reasoningSummary: 'auto', forceReasoning: true },
  anthropic: { thinking: { type: 'enabled', budgetTokens: 1024 } },
};
const options = () => ({ maxRetries: 0, maxOutputTokens: 4000, abortSignal: AbortSignal.timeout(timeout) });

function weather(cities) {
  return { weather: tool({ inputSchema: jsonSchema(weatherParameters), execute: async ({ city }) => { cities.push(city); return 'rain'; } }) };
}

for (const [wire, languageModel] of Object.entries(wires)) {
  test(`${wire}: text, whole and streamed`, async () => {
    const whole = await generateText({ model: languageModel, prompt: 'Hi', ...options() });
    assert.equal(whole.text, greeting);
    assert.equal(whole.finishReason, 'stop');
    const streamed = streamText({ model: languageModel, prompt: 'Hi', ...options() });
    assert.equal(await streamed.text, greeting);
    assert.equal(await streamed.finishReason, 'stop');
    assert.equal((await streamed.usage).outputTokens, whole.usage.outputTokens);
  });

  test(`${wire}: reasoning, whole and streamed`, async () => {
    const params = { model: languageModel, prompt: 'Think about rain', providerOptions: thinking, ...options() };
    const whole = await generateText(params);
    assert.equal(whole.reasoningText, 'First, rain.\nThen more of rain.');
    assert.equal(whole.text, 'All about rain.');
    const streamed = streamText(params);
    assert.equal(await streamed.text, 'All about rain.');
    assert.equal(await streamed.reasoningText, 'First, rain.\nThen more of rain.');
  });

  test(`${wire}: a loop with tools, whole and streamed`, async () => {
    for (const run of [generateText, streamText]) {
      const cities = [];
      const answer = run({ model: languageModel, prompt: 'Ask for the weather of Bern and Basel', tools: weather(cities), stopWhen: stepCountIs(3), ...options() });
      assert.equal(await (await answer).text, 'The tool says: rain.');
      assert.deepEqual(cities, ['Bern', 'Basel']);
    }
  });

  test(`${wire}: a loop with reasoning`, async () => {
    const cities = [];
    const answer = await generateText({ model: languageModel, prompt: 'Think, then ask for the weather', tools: weather(cities), stopWhen: stepCountIs(3), providerOptions: thinking, ...options() });
    assert.equal(answer.text, 'The tool says: rain.');
    assert.deepEqual(cities, ['Bern']);
    assert.equal(answer.steps.length, 2);
  });

  test(`${wire}: structured output, whole and streamed`, async () => {
    const schema = { type: 'object', additionalProperties: false, properties: { city: { type: 'string' }, days: { type: 'integer' } }, required: ['city', 'days'] };
    for (const run of [generateText, streamText]) {
      const answer = await run({ model: languageModel, prompt: 'Answer in JSON', output: Output.object({ schema: jsonSchema(schema) }), ...options() });
      assert.deepEqual(await answer.output, { city: 'Bern', days: 3 });
    }
  });

  test(`${wire}: errors`, async () => {
    await assert.rejects(generateText({ model: languageModel, prompt: long, ...options() }), (e) => e.statusCode === 400 && /maximum/.test(e.message));
    const streamed = streamText({ model: languageModel, prompt: long, ...options(), onError: () => {} });
    await assert.rejects(async () => streamed.text);
  });
}
