import assert from 'node:assert/strict';
import { test } from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import { greeting, key, long, model, timeout, url, weatherParameters } from './setup.mjs';

const client = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0, timeout });
const tools = [{ name: 'weather', input_schema: weatherParameters }];
const thinking = { type: 'enabled', budget_tokens: 1024 };
const ask = (content, more = {}) => ({ model, max_tokens: 2000, messages: [{ role: 'user', content }], ...more });
const outline = (message) => message.content.map((b) => [b.type, b.thinking ?? b.text ?? b.input]);

test('whole and stream say the same', async () => {
  for (const [params, want, stop] of [
    [ask('Hi'), [['text', greeting]], 'end_turn'],
    [ask('Think about rain', { thinking }), [['thinking', 'First, rain.\nThen more of rain.'], ['text', 'All about rain.']], 'end_turn'],
    [ask('Ask for the weather of Bern and Basel', { tools }), [['tool_use', { city: 'Bern' }], ['tool_use', { city: 'Basel' }]], 'tool_use'],
    [ask('Hi', { stop_sequences: [' Zür'] }), [['text', 'Hello,']], 'stop_sequence'],
  ]) {
    const whole = await client.messages.create(params);
    const streamed = await client.messages.stream(params).finalMessage();
    for (const message of [whole, streamed]) {
      assert.deepEqual(outline(message), want);
      assert.equal(message.stop_reason, stop);
    }
    assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  }
});

test('tool loop, counted', async () => {
  const params = ask('Think, then ask for the weather', { tools, thinking });
  const first = await client.messages.stream(params).finalMessage();
  const call = first.content.at(-1);
  params.messages.push({ role: 'assistant', content: first.content }, { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content: 'fog' }] });
  const second = await client.messages.create(params);
  assert.deepEqual(outline(second).at(-1), ['text', 'The tool says: fog.']);
  const { max_tokens: _, ...counted } = params;
  const count = await client.messages.countTokens(counted);
  const u = second.usage;
  assert.equal(count.input_tokens, u.input_tokens + u.cache_creation_input_tokens + u.cache_read_input_tokens);
});

test('errors have their classes, streamed or not', async () => {
  for (const stream of [false, true]) {
    await assert.rejects(client.messages.create(ask('Hi', { temperature: 9, stream })), Anthropic.BadRequestError);
    await assert.rejects(client.messages.create(ask(long, { stream })), (e) => e instanceof Anthropic.BadRequestError && /prompt is too long: \d+ tokens > \d+ maximum/.test(e.message));
  }
  const stranger = new Anthropic({ baseURL: url, apiKey: 'wrong', maxRetries: 0, timeout });
  await assert.rejects(stranger.messages.create(ask('Hi')), (e) => e instanceof Anthropic.AuthenticationError && e.requestID !== undefined);
});

test('models', async () => {
  const list = await client.models.list({ limit: 1000 });
  assert.deepEqual(list.data.map((m) => m.id), [model]);
  assert.equal((await client.models.retrieve(model)).type, 'model');
});
