// Vercel's ai against a server of a model that thinks and calls tools: node dialects.mjs URL
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "cutaway", baseURL: `${url}/v1`, apiKey: "any", includeUsage: true });
const asked = [];
const weather = tool({
  description: "The weather of a city.",
  inputSchema: z.object({ city: z.enum(["Paris", "Rome"]), days: z.number().int().min(1).max(9) }),
  execute: async ({ city }) => { asked.push(city); return `rain in ${city}`; },
});
const base = {
  model: provider("t"), maxOutputTokens: 500, maxRetries: 0, tools: { weather }, prompt: "What is the weather in Paris?",
  providerOptions: { cutaway: { parallel_tool_calls: false, thinking_token_budget: 6, seed: 3 } },
};

// Two turns: a call, whose result is read.
const done = await generateText({
  ...base, stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" }),
});
assert.equal(done.steps.length, 2);
assert.equal(asked.length, 1);
assert.equal(done.steps[0].toolResults[0].output, `rain in ${asked[0]}`);
assert.equal(done.steps[1].toolCalls.length, 0);
const thought = done.steps[0].reasoningText ?? "";

// The same call and thought, streamed.
const stream = streamText({ ...base, toolChoice: "required" });
let streamed = "";
for await (const part of stream.fullStream) if (part.type === "reasoning-delta") streamed += part.text;
assert.equal((await stream.toolCalls)[0].toolName, "weather");
assert.equal(streamed, thought);
console.log(thought ? "thought and called" : "called");
