-- ARGV: version, policy, channel. An older or equal version changes nothing (returns 0).
local held = tonumber(redis.call('HGET', P .. ':policy', 'version') or '0')
if tonumber(ARGV[1]) <= held then return 0 end
redis.call('HSET', P .. ':policy', 'version', ARGV[1], 'body', ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[1])
return 1
