-- ARGV: reason, now, day, ids...: extents that must not be served any more, whoever claims them. Returns those that were known.
local out = {}
local classes = redis.call('SMEMBERS', P .. ':classes')
for i = 4, #ARGV do
  local record = record_get(ARGV[i])
  if record then
    local held = claims_of(ARGV[i], classes)
    for j = 1, #held, 2 do claim_drop(ARGV[i], held[j], record.b) end
    destroy(ARGV[i], record, ARGV[1], held[1] or '', ARGV[2], ARGV[3])
    out[#out + 1] = ARGV[i]
  end
end
return out
