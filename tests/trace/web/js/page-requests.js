// In the page: each request that it makes, of each kind of run; what came of it, by name.
async ({ file, forcedFile }) => {
  const { $state_api: api, $state_session: { Session }, $state_store: { Store }, $state_requests: { makeRequest },
    $state_inside_cache: { stepOf } } = await import(document.querySelector("script[src]").src);
  const store = new Store(), session = new Session(store);
  const { signal } = new AbortController();
  const said = {}, records = {};
  const RECORDED = ["an answer", "a second answer", "greedy", "a file of a fork, forked twice", "dry", "biased"];
  const ELSEWHERE = { tier: "", threads: 0, backend: "", cutaway: "" };
  const settings = { max_tokens: 12, temperature: 0.8, min_p: 0.02 };
  store.set({ about: await api.fetchAbout(), settings, seed: "5" });

  const note = (name, { trace, error }) => {
    said[name] = error ?? [trace.end?.fingerprint ?? trace.steps.at(-1)?.fingerprint, trace.head.prompt_token_ids, trace.outputIds,
      trace.head.params.max_tokens, trace.steps.map(({ source }) => source[0]).join("")];
    if (RECORDED.includes(name)) records[name] = [{ ...trace.head, ...ELSEWHERE }, trace.steps.map(({ ms, ...step }) => step), [...trace.tokens.keys()]];
  };
  const start = async (name, more) => {
    const run = await session.start(makeRequest(store, more));
    note(name, run);
    return run;
  };
  const rival = (run, at) => run.trace.steps[at].candidates.find(({ id }) => id !== run.trace.steps[at].token_id).id;
  const fork = async (name, run, at) => {
    const forked = await session.fork(run, at, rival(run, at));
    note(name, forked ?? { error: store.state.notice });
    return forked?.trace.steps.length ? forked : null;
  };
  /** What one can do to a run at a step. */
  const ask = async (name, run, at) => {
    const trace = await session.stepWith(run, at, { temperature: 1.5 }, signal).catch((error) => ({ error: String(error) }));
    note(`${name}: what if`, trace.error ? trace : { trace });
    const before = run.trace.outputIds.slice(0, at);
    note(`${name}: run it`, await session.start(session.makeContinuation(run, before, { temperature: 1.5 }), { parent: run.id, at }));
    const { ids } = await api.tokenize(" the old house", true);
    const typed = session.makeContinuation(run, [...before, ...ids]);
    note(`${name}: a typed token`, await session.branch(run, at, typed, "typed"));
    const forced = [...before, rival(run, at), ...run.trace.outputIds.slice(at + 1)];
    note(`${name}: a mistake`, await session.start(session.makeContinuation(run, forced, { max_tokens: forced.length })));
    const { head, outputIds } = run.trace;
    await start(`${name}: continued`, { prompt: [...head.prompt_token_ids, ...outputIds], seed: head.seed });
    const inside = await api.ask("/v1/inside", { ...stepOf(run.trace, at), rival: null, format: "safetensors" }, signal)
      .then((answer) => answer.arrayBuffer()).catch((error) => String(error));
    said[`${name}: inside`] = typeof inside === "string" ? inside : "computed";
  };
  const kinds = async (name, run) => {
    const forked = await fork(`${name}, forked`, run, 2);
    const twice = forked && await fork(`${name}, forked twice`, forked, 5);
    for (const [kind, one] of [["", run], [", forked", forked], [", forked twice", twice]]) if (one) await ask(name + kind, one, 6);
  };

  const run = await start("a text", { prompt: "Mr. Darcy" });
  await kinds("a text", run);
  await start("without the KV cache", { prompt: "Mr. Darcy", settings: { kv_cache: false } });
  const again = await start("a text, continued", { prompt: [...run.trace.head.prompt_token_ids, ...run.trace.outputIds], seed: "5" });
  await kinds("a text, continued", again);
  const question = { kind: "chat", messages: [{ role: "user", content: "Who is Mr. Darcy?" }] };
  const answer = await start("an answer", question);
  await kinds("an answer", answer);
  const messages = [...question.messages, { role: "assistant", content: answer.trace.text }, { role: "user", content: "And she?" }];
  await start("a second answer", { kind: "chat", messages });
  await kinds("a file", await session.open(new File([file], "a.jsonl")));
  await kinds("a file of a fork", await session.open(new File([forcedFile], "b.jsonl")));
  await start("a typed text", { prompt: "Mr. Darcy", forced: run.trace.outputIds.slice(0, 3), settings: { max_tokens: 4 } });
  await start("dry", { prompt: "he said: he said: he", settings: { dry_multiplier: 2, repetition_penalty: 1.2 } });
  await start("dry, between", { prompt: "he said: he said: he", settings: { dry_multiplier: 2, dry_breakers: [" said", 5] } });
  await start("biased", { prompt: "Mr. Darcy", settings: { logit_bias: { 5: 3, 300: -2.5 }, stop_token_ids: [11], track: [7], candidates: 3 } });
  await start("greedy", { prompt: "Mr. Darcy", settings: { temperature: 0 } });

  const own = new Store(), reader = new Session(own); // of a page that opens with a recording
  own.set({ about: store.state.about });
  await reader.openRecording(new Blob([forcedFile]), false);
  note("a recording of a fork, again", await reader.start(reader.adopt(own.state.recording).request));
  note("a recording, forked", await reader.fork(own.state.recording ?? own.run, 4, rival(own.state.recording, 4)));
  for (const kept of own.state.runs) if (kept.request) note(`an address: ${kept.name}`, await session.start(kept.request));
  const old = { ...run.request, settings: { ...run.request.settings, forced: run.trace.outputIds.slice(0, 2) } };
  note("an address of an earlier page", await session.start(old));
  return { said, records };
}
