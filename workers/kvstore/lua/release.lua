-- ARGV: reason, now, day, ghosts kept, blocks to free ('-1': all), bytes to free ('-1': all), then (claim, highest score, id)
-- three by three. A claim that was used since (its score is higher) stays. Returns {claims released, blocks freed, bytes
-- freed, bytes of claims released, ids of extents that nobody claims any more...}.
local reason, now, day, ghosts = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local want_blocks, want_bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local released, blocks, bytes, let_go = 0, 0, 0, 0
local out = { 0, 0, 0, 0 }
for i = 7, #ARGV, 3 do
  if (want_blocks >= 0 and blocks >= want_blocks) or (want_bytes >= 0 and bytes >= want_bytes) then break end
  local claim, id = ARGV[i], ARGV[i + 2]
  local record = record_get(id)
  local score = record and tonumber(record['c:' .. claim] or nil)
  if not score then
    redis.call('ZREM', claim_key(claim), id)
  elseif score <= tonumber(ARGV[i + 1]) then
    claim_drop(id, claim, record)
    released = released + 1
    let_go = let_go + record.b
    if not claimed(record) then
      ghost_add(record, claim, score + record.d, ghosts)
      destroy(id, record, reason, claim, now, day)
      blocks, bytes = blocks + record.n, bytes + record.b
      out[#out + 1] = id
    end
  end
end
out[1], out[2], out[3], out[4] = int(released), int(blocks), int(bytes), int(let_go)
flush()
return out
