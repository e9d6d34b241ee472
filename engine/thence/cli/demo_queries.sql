-- What was asked, and what came of it
SELECT run_id, state, tool_calls_count AS calls, total_tokens AS tokens
FROM runs WHERE session_id = :session;

-- The log of the first question, step by step
SELECT seq, kind, key, payload
FROM facts WHERE session_id = :session AND key LIKE 't1-%'
ORDER BY seq;

-- What the tools found, and the answer to the request that carried it
SELECT r.key,
  substr(json_extract(r.payload, '$.parts[0].text'), 1, 32) AS result,
  (SELECT json_extract(a.payload, '$.text') FROM facts a
   WHERE a.session_id = r.session_id AND a.kind = 'model.turn' AND a.seq > r.seq
   ORDER BY a.seq LIMIT 1) AS answer
FROM facts r WHERE r.session_id = :session AND r.kind = 'tool.result'
ORDER BY r.seq;
