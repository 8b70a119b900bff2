package clients

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func goredis(t testing.TB, protocol int) *redis.Client {
	client := redis.NewClient(&redis.Options{
		Addr:       address(t, "REDIS_ADDR"),
		Protocol:   protocol,
		ClientName: "clients",
		// What is asked again because a machine is busy may be done twice.
		ReadTimeout: 30 * time.Second,
	})
	t.Cleanup(func() { client.Close() })
	return client
}

// got compares what a command answered.
func got[T comparable](t testing.TB, expected T) func(T, error) {
	t.Helper()
	return func(value T, err error) {
		t.Helper()
		if err != nil || value != expected {
			t.Fatalf("the answer is %v, %v; not %v", value, err, expected)
		}
	}
}

// gotNothing expects the answer for what is not there.
func gotNothing[T any](t testing.TB) func(T, error) {
	t.Helper()
	return func(value T, err error) {
		t.Helper()
		if !errors.Is(err, redis.Nil) {
			t.Fatalf("the answer is %v, %v; not nil", value, err)
		}
	}
}

func TestGoredis(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("Resp%d", protocol), func(t *testing.T) {
			client := goredis(t, protocol)
			// First, because it takes everybody's keys.
			t.Run("FlushScan", func(t *testing.T) { flushAndScan(t, client) })
			t.Run("group", func(t *testing.T) {
				for name, test := range map[string]func(*testing.T, *redis.Client){
					"SetGet":   setAndGet,
					"Many":     many,
					"Numbers":  numbers,
					"Expiry":   expiry,
					"GetEx":    getAndMore,
					"Pipeline": pipeline,
					"Errors":   unknownCommands,
				} {
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						test(t, client)
					})
				}
			})
		})
	}
}

func flushAndScan(t *testing.T, client *redis.Client) {
	ctx := context.Background()
	got(t, "OK")(client.FlushAll(ctx).Result())
	keys := map[string]bool{}
	for range 200 {
		key := "scan-" + fresh()
		keys[key] = true
		got(t, "OK")(client.Set(ctx, key, "x", 0).Result())
	}
	got(t, "OK")(client.Set(ctx, fresh(), "x", 0).Result())
	got(t, int64(201))(client.DBSize(ctx).Result())
	iterator := client.Scan(ctx, 0, "scan-*", 20).Iterator()
	for iterator.Next(ctx) {
		delete(keys, iterator.Val())
	}
	check(t, iterator.Err())
	if len(keys) != 0 {
		t.Fatalf("%d keys were not scanned", len(keys))
	}
	got(t, "OK")(client.FlushAll(ctx).Result())
	got(t, int64(0))(client.DBSize(ctx).Result())
}

func setAndGet(t *testing.T, client *redis.Client) {
	ctx, key := context.Background(), fresh()
	gotNothing[string](t)(client.Get(ctx, key).Result())
	got(t, "OK")(client.Set(ctx, key, "value", 0).Result())
	got(t, "value")(client.Get(ctx, key).Result())
	got(t, false)(client.SetNX(ctx, key, "no", 0).Result())
	got(t, true)(client.SetXX(ctx, key, "yes", time.Minute).Result())
	got(t, "yes")(client.SetArgs(ctx, key, "more", redis.SetArgs{Get: true, KeepTTL: true}).Result())
	got(t, time.Minute)(client.TTL(ctx, key).Result())
	got(t, int64(5))(client.Append(ctx, key, "!").Result())
	got(t, int64(5))(client.StrLen(ctx, key).Result())
	got(t, int64(1))(client.Exists(ctx, key, fresh()).Result())
	got(t, int64(1))(client.Del(ctx, key, fresh()).Result())
	got(t, int64(0))(client.Unlink(ctx, key).Result())
	large := strings.Repeat("\x00\r\n☃", 150_000)
	got(t, "OK")(client.Set(ctx, key, large, 0).Result())
	got(t, large)(client.Get(ctx, key).Result())
}

func many(t *testing.T, client *redis.Client) {
	ctx := context.Background()
	pairs, keys := []any{}, []string{}
	for number := range 200 {
		keys = append(keys, fresh())
		pairs = append(pairs, keys[number], number)
	}
	got(t, "OK")(client.MSet(ctx, pairs...).Result())
	values, err := client.MGet(ctx, append(keys, fresh())...).Result()
	check(t, err)
	for number := range keys {
		if values[number] != fmt.Sprint(number) {
			t.Fatalf("%d: %v", number, values[number])
		}
	}
	if values[len(keys)] != nil {
		t.Fatalf("a missing key: %v", values[len(keys)])
	}
}

func numbers(t *testing.T, client *redis.Client) {
	ctx, key := context.Background(), fresh()
	got(t, int64(1))(client.Incr(ctx, key).Result())
	got(t, int64(42))(client.IncrBy(ctx, key, 41).Result())
	got(t, int64(41))(client.Decr(ctx, key).Result())
	got(t, int64(-9))(client.DecrBy(ctx, key, 50).Result())
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 100 {
				if err := client.Incr(ctx, key).Err(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	got(t, "791")(client.Get(ctx, key).Result())
}

func expiry(t *testing.T, client *redis.Client) {
	ctx, key, other := context.Background(), fresh(), fresh()
	got(t, time.Duration(-2))(client.TTL(ctx, key).Result())
	got(t, "OK")(client.Set(ctx, key, "value", time.Second).Result())
	got(t, "OK")(client.Set(ctx, other, "value", time.Second).Result())
	got(t, true)(client.Persist(ctx, other).Result())
	got(t, time.Duration(-1))(client.TTL(ctx, other).Result())
	got(t, true)(client.PExpire(ctx, key, 900*time.Millisecond).Result())
	if left, err := client.PTTL(ctx, key).Result(); err != nil || left <= 0 || left > 900*time.Millisecond {
		t.Fatalf("%v, %v", left, err)
	}
	time.Sleep(1500 * time.Millisecond)
	gotNothing[string](t)(client.Get(ctx, key).Result())
	got(t, "value")(client.Get(ctx, other).Result())
}

func getAndMore(t *testing.T, client *redis.Client) {
	ctx, key := context.Background(), fresh()
	gotNothing[string](t)(client.GetDel(ctx, key).Result())
	got(t, "OK")(client.Set(ctx, key, "value", 0).Result())
	got(t, "value")(client.GetEx(ctx, key, time.Minute).Result())
	got(t, time.Minute)(client.TTL(ctx, key).Result())
	got(t, "value")(client.GetDel(ctx, key).Result())
	gotNothing[string](t)(client.Get(ctx, key).Result())
}

func pipeline(t *testing.T, client *redis.Client) {
	ctx, key := context.Background(), fresh()
	answers, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for number := range 500 {
			pipe.Set(ctx, fmt.Sprint(key, number), number, 0)
			pipe.Get(ctx, fmt.Sprint(key, number))
		}
		return nil
	})
	check(t, err)
	for number := range 500 {
		got(t, fmt.Sprint(number))(answers[2*number+1].(*redis.StringCmd).Result())
	}
}

func unknownCommands(t *testing.T, client *redis.Client) {
	ctx := context.Background()
	got(t, "PONG")(client.Ping(ctx).Result())
	got(t, "hello")(client.Echo(ctx, "hello").Result())
	if err := client.Do(ctx, "nonsense").Err(); err == nil || !strings.Contains(err.Error(), "unknown command") {
		t.Fatalf("an unknown command: %v", err)
	}
	if id, err := client.ClientID(ctx).Result(); err != nil || id <= 0 {
		t.Fatalf("%d, %v", id, err)
	}
	got(t, "PONG")(client.Ping(ctx).Result())
}
