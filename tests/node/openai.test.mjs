import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { greeting, key, long, model, timeout, url, weatherParameters } from './setup.mjs';

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0, timeout });
const chatTools = [{ type: 'function', function: { name: 'weather', parameters: weatherParameters } }];
const tools = [{ type: 'function', name: 'weather', parameters: weatherParameters, strict: false }, { type: 'custom', name: 'patch', description: 'Apply a patch' }];
const ask = (content, more = {}) => ({ model, messages: [{ role: 'user', content }], ...more });

test('chat: whole and stream say the same', async () => {
  const whole = await client.chat.completions.create(ask('Hi'));
  const stream = client.chat.completions.stream(ask('Hi', { stream_options: { include_usage: true } }));
  const streamed = await stream.finalChatCompletion();
  for (const answer of [whole, streamed]) {
    assert.equal(answer.choices[0].message.content, greeting);
    assert.equal(answer.choices[0].finish_reason, 'stop');
  }
  assert.equal(streamed.usage.completion_tokens, whole.usage.completion_tokens);
});

test('chat: reasoning', async () => {
  const params = ask('Think about rain', { reasoning_effort: 'low' });
  const whole = await client.chat.completions.create(params);
  assert.equal(whole.choices[0].message.reasoning_content, 'First, rain.\nThen more of rain.');
  let reasoning = '';
  let content = '';
  for await (const chunk of await client.chat.completions.create({ ...params, stream: true })) {
    reasoning += chunk.choices[0]?.delta.reasoning_content ?? '';
    content += chunk.choices[0]?.delta.content ?? '';
  }
  assert.equal(reasoning, 'First, rain.\nThen more of rain.');
  assert.equal(content, 'All about rain.');
});

test('chat: the tool runner completes a loop', async () => {
  const cities = [];
  const runner = client.chat.completions.runTools({
    ...ask('Ask for the weather of Bern and Basel'),
    stream: true,
    tools: [{ type: 'function', function: { name: 'weather', parameters: weatherParameters, parse: JSON.parse, function: ({ city }) => { cities.push(city); return 'rain'; } } }],
  });
  assert.equal(await runner.finalContent(), 'The tool says: rain.');
  assert.deepEqual(cities, ['Bern', 'Basel']);
});

test('chat: streamed calls', async () => {
  const stream = client.chat.completions.stream(ask('Ask for the weather of Bern and Basel', { tools: chatTools }));
  const message = await stream.finalMessage();
  assert.deepEqual(message.tool_calls.map((c) => JSON.parse(c.function.arguments).city), ['Bern', 'Basel']);
  assert.equal((await stream.finalChatCompletion()).choices[0].finish_reason, 'tool_calls');
});

test('errors have their classes, streamed or not', async () => {
  for (const stream of [false, true]) {
    await assert.rejects(client.chat.completions.create(ask('Hi', { temperature: 9, stream })), (e) => e instanceof OpenAI.BadRequestError && e.code === 'invalid_value' && e.param === 'temperature');
    await assert.rejects(client.chat.completions.create(ask(long, { stream })), (e) => e instanceof OpenAI.BadRequestError && e.code === 'context_length_exceeded');
    await assert.rejects(client.responses.create({ model, input: 'Hi', background: true, store: false, stream }), (e) => e instanceof OpenAI.BadRequestError && e.code === 'invalid_value' && e.param === 'background');
  }
  const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'wrong', maxRetries: 0, timeout });
  await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
  await assert.rejects(client.responses.retrieve('resp_none'), OpenAI.NotFoundError);
});

test('models', async () => {
  const list = await client.models.list();
  assert.deepEqual(list.data.map((m) => m.id), [model]);
  assert.equal((await client.models.retrieve(model)).object, 'model');
});

// collect runs a response through the library's own accumulator, which throws at events that do not fit.
async function collect(params) {
  const stream = client.responses.stream(params);
  const types = new Set();
  let next = 0;
  for await (const event of stream) {
    assert.equal(event.sequence_number, next++);
    types.add(event.type);
  }
  return [await stream.finalResponse(), types];
}

const outline = (response) => response.output.map((it) => [it.type, it.content?.[0]?.text ?? it.arguments ?? it.input]);

test('responses: whole and stream say the same', async () => {
  for (const [params, want] of [
    [{ input: 'Hi' }, [['message', greeting]]],
    [{ input: 'Think about rain', reasoning: { effort: 'low', summary: 'auto' } }, [['reasoning', 'First, rain.\nThen more of rain.'], ['message', 'All about rain.']]],
    [{ input: 'Ask for the weather of Bern and Basel', tools }, [['function_call', '{"city": "Bern"}'], ['function_call', '{"city": "Basel"}']]],
    [{ input: 'Patch the file', tools }, [['custom_tool_call', '*** Begin Patch\n+ "quoted"\n*** End Patch']]],
  ]) {
    const whole = await client.responses.create({ model, ...params });
    const [streamed, types] = await collect({ model, ...params });
    assert.deepEqual(outline(whole), want);
    assert.deepEqual(outline(streamed), want);
    assert.equal(whole.output_text, streamed.output_text);
    assert.ok(types.has('response.output_item.done') && types.has('response.completed'));
    assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  }
});

test('responses: tool loop over the store and without it', async () => {
  const input = [{ role: 'user', content: 'Think, then ask for the weather' }];
  const params = { model, tools, reasoning: { effort: 'low' }, include: ['reasoning.encrypted_content'] };
  const [first] = await collect({ ...params, input, store: false });
  const call = first.output.at(-1);
  assert.equal(call.name, 'weather');
  const result = { type: 'function_call_output', call_id: call.call_id, output: 'fog' };
  const second = await client.responses.create({ ...params, input: [...input, ...first.output, result], store: false });
  assert.equal(second.output_text, 'The tool says: fog.');

  const kept = await client.responses.create({ ...params, input });
  const third = await client.responses.create({ ...params, previous_response_id: kept.id, input: [{ ...result, call_id: kept.output.at(-1).call_id }] });
  assert.equal(third.output_text, 'The tool says: fog.');
  assert.equal((await client.responses.retrieve(third.id)).output_text, third.output_text);
  const numbers = [];
  let last;
  for await (const event of await client.responses.retrieve(third.id, { stream: true, starting_after: 1 })) {
    numbers.push(event.sequence_number);
    last = event;
  }
  assert.deepEqual(numbers, numbers.map((_, i) => i + 2));
  assert.equal(last.response.output_text, third.output_text);
  const items = [];
  for await (const item of client.responses.inputItems.list(third.id, { order: 'asc', limit: 2 })) items.push(item.type);
  assert.deepEqual([items[0], items.at(-1)], ['message', 'function_call_output']);
  await client.responses.delete(third.id);
});

test('responses: in the background', async () => {
  const begun = await client.responses.create({ model, input: 'Hi', background: true });
  assert.ok(['queued', 'in_progress'].includes(begun.status));
  let last;
  for await (const event of await client.responses.retrieve(begun.id, { stream: true })) last = event;
  assert.equal(last.response.output_text, greeting);
  const kept = await client.responses.retrieve(begun.id);
  assert.equal(kept.status, 'completed');
  assert.equal(kept.output_text, greeting);
  assert.equal(kept.background, true);
});

test('structured output through the helpers for zod', async () => {
  const Answer = z.object({ city: z.string(), days: z.int() });
  const chat = await client.chat.completions.parse(ask('Answer in JSON', { response_format: zodResponseFormat(Answer, 'answer') }));
  assert.deepEqual(chat.choices[0].message.parsed, { city: 'Bern', days: 3 });
  const response = await client.responses.parse({ model, input: 'Answer in JSON', text: { format: zodTextFormat(Answer, 'answer') } });
  assert.deepEqual(response.output_parsed, { city: 'Bern', days: 3 });
});

test('responses: cancel ends the stream', async () => {
  let last;
  for await (const event of await client.responses.create({ model, input: 'Count for ever', stream: true })) {
    if (event.type === 'response.output_item.added') {
      assert.equal((await client.responses.cancel(last.id)).status, 'cancelled');
    }
    last = event.response ?? last;
  }
  assert.equal(last.status, 'cancelled');
});
