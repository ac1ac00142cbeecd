-- ARGV: claim, now, ids of sidecars...: use these extents (a sidecar is one step deeper than its block). Returns how many exist.
local claim, now, found = ARGV[1], tonumber(ARGV[2]), 0
for i = 3, #ARGV do
  local record = redis.call('HMGET', RECORD .. ARGV[i], 'd', 'b', 'c:' .. claim)
  if record[1] then
    found = found + 1
    local score = now - tonumber(record[1]) - 1
    if not record[3] or tonumber(record[3]) < score then
      claim_set(ARGV[i], claim, score, record[3], tonumber(record[2]))
    end
  end
end
flush()
return found
