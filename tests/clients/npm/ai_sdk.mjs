// Vercel's ai with @ai-sdk/openai-compatible against a server: node ai_sdk.mjs URL TEXT
// TEXT is what the model alone answers to the question below, at temperature 0.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import {
  APICallError, embed, generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool,
} from "ai";
import { z } from "zod";

const [url, alone] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "cutaway", baseURL: `${url}/v1`, apiKey: "any", includeUsage: true, supportsStructuredOutputs: true,
});
const base = {
  model: provider("smollm2"), temperature: 0, maxOutputTokens: 60, maxRetries: 0,
  providerOptions: { cutaway: { parallel_tool_calls: false } },
};
const plain = { ...base, providerOptions: {}, prompt: "Name a city." };
const cities = z.enum(["Paris", "Rome"]);
const visit = z.object({ city: cities, days: z.number().int().min(1).max(9) });
const asked = [];
const weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ city: cities }),
  execute: async ({ city }) => { asked.push(city); return `rain in ${city}`; },
});

// Texts, whole and streamed.
const whole = await generateText(plain);
assert.equal(whole.text, alone);
assert.ok(whole.usage.outputTokens > 0);
const stream = streamText(plain);
let text = "";
for await (const part of stream.textStream) text += part;
assert.equal(text, alone);
assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);

// A tool that is called, run, and whose result is read.
const tools = { ...base, prompt: "What is the weather in Paris?", tools: { weather } };
const loop = await generateText({
  ...tools, stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" }),
});
assert.equal(loop.steps.length, 2);
assert.equal(asked.length, 1);
assert.equal(loop.steps[0].toolResults[0].output, `rain in ${asked[0]}`);
assert.ok(loop.text);
const called = streamText({ ...tools, toolChoice: { type: "tool", toolName: "weather" } });
const kinds = new Set();
for await (const part of called.fullStream) kinds.add(part.type);
assert.ok(["tool-input-start", "tool-input-delta", "tool-input-end", "tool-call"].every((k) => kinds.has(k)));
assert.equal((await called.toolCalls)[0].toolName, "weather");

// Objects of a schema.
const grows = streamObject({ ...plain, schema: visit });
let parts = 0;
for await (const _ of grows.partialObjectStream) parts++;
assert.ok(parts > 1);
for (const made of [
  (await generateObject({ ...plain, schema: visit })).object,
  await grows.object,
  (await generateText({ ...plain, output: Output.object({ schema: visit }) })).output,
]) assert.ok(visit.safeParse(made).success);
const weathers = ["sun", "rain"];
assert.ok(weathers.includes((await generateObject({ ...plain, output: "enum", enum: weathers })).object));

// An object of a schema beside a tool: calls, or the object.
const both = { ...tools, output: Output.object({ schema: visit }) };
asked.length = 0;
const agent = await generateText({
  ...both, stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" }),
});
assert.equal(asked.length, 1);
assert.ok(visit.safeParse(agent.output).success);
for (let seed = 0; seed < 3; seed++) {
  const free = await generateText({ ...both, temperature: 0.8, seed });
  const calls = free.toolCalls.length;
  assert.ok(calls ? calls === 1 && !free.text : visit.safeParse(free.output).success);
}
const grown = streamText({ ...both, toolChoice: "none" });
let objects = 0;
for await (const _ of grown.partialOutputStream) objects++;
assert.ok(objects > 1 && visit.safeParse(await grown.output).success);

// Vectors, and a prompt that is too long.
const vector = await embed({ model: provider.embeddingModel("smollm2"), value: "one" });
assert.equal(vector.embedding.length, 576);
await assert.rejects(
  generateText({ ...plain, prompt: "a ".repeat(20_000) }),
  (error) => APICallError.isInstance(error) && error.statusCode === 400
    && error.responseBody.includes("context_length_exceeded"),
);
