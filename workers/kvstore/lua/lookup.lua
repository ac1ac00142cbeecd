-- ARGV: chain. Returns {policy version, store id, {id, offset, count, {claim, last, ...}}...}. Uses nothing.
local claims = {}
for _, claim in ipairs(redis.call('SMEMBERS', P .. ':classes')) do
  if string.sub(claim, -8) ~= '/sidecar' then claims[#claims + 1] = claim end
end
local out = { redis.call('HGET', P .. ':policy', 'version') or '0', redis.call('HGET', P .. ':meta', 'store') or '' }
walk(ARGV[1], function(id, off, count) out[#out + 1] = { id, off, count, claims_of(id, claims) } end)
return out
