-- What was asked, and what came of it
SELECT run_id, state, tool_calls_count AS calls, total_tokens AS tokens, prompt
FROM runs WHERE session_id = :session;

-- The log of the first question: every step with the one that caused it
SELECT seq, kind, key, cause, substr(payload, 1, 40) AS payload
FROM facts WHERE session_id = :session AND key LIKE 't1-%' ORDER BY seq;

-- What the tools really found: each result, and the answer to the request that carried it
SELECT r.key, json_extract(r.payload, '$.parts[0].text') AS result, json_extract(a.payload, '$.text') AS answer
FROM facts r JOIN facts a ON a.session_id = r.session_id AND a.cause = r.key
WHERE r.session_id = :session AND r.kind = 'tool.result' AND a.kind = 'model.turn' ORDER BY r.seq;

-- What each tool run took
SELECT json_extract(payload, '$.name') AS tool, json_extract(payload, '$.duration_ms') AS ms,
  json_extract(payload, '$.output_bytes') AS bytes FROM traces WHERE session_id = :session;
