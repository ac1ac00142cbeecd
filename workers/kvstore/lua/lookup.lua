-- ARGV: chain. Returns {policy version, store id, claims joined by newlines, rows}, where a row is the extent's id, u16 offset,
-- u16 count and a double for each claim: its last use, 0 where there is none. Uses nothing.
local claims, fields, pattern = {}, { 'h' }, '<c16I2I2'
for _, claim in ipairs(redis.call('SMEMBERS', P .. ':classes')) do
  if string.sub(claim, -8) ~= '/sidecar' then
    claims[#claims + 1] = claim
    fields[#fields + 1] = 'c:' .. claim
    pattern = pattern .. 'd'
  end
end
local rows = {}
walk(ARGV[1], fields, function(id, off, count, _, record)
  local held = {}
  for j = 1, #claims do held[j] = tonumber(record[j + 1] or 0) end
  rows[#rows + 1] = struct.pack(pattern, id, off, count, unpack(held))
end)
return {
  redis.call('HGET', P .. ':policy', 'version') or '0',
  redis.call('HGET', P .. ':meta', 'store') or '',
  table.concat(claims, '\n'),
  table.concat(rows),
}
