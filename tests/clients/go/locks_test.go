package clients

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redis/redis_rate/v10"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// Transactions and scripts of go-redis, and what is built upon them: redsync,
// redislock, redis_rate.
func TestLocks(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("Resp%d", protocol), func(t *testing.T) {
			client := goredis(t, protocol)
			for name, test := range map[string]func(*testing.T, *redis.Client){
				"Transaction": transaction,
				"Watch":       watch,
				"Script":      script,
				"Redsync":     redsyncMutex,
				"Redislock":   redisLock,
				"RedisRate":   redisRate,
			} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					test(t, client)
				})
			}
		})
	}
}

func transaction(t *testing.T, client *redis.Client) {
	ctx, key, other := context.Background(), fresh(), fresh()
	answers, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, key, "41", time.Minute)
		pipe.Incr(ctx, key)
		pipe.Set(ctx, other, "word", 0)
		pipe.Get(ctx, other)
		return nil
	})
	check(t, err)
	got(t, int64(42))(answers[1].(*redis.IntCmd).Result())
	got(t, "word")(answers[3].(*redis.StringCmd).Result())
	if left, err := client.TTL(ctx, key).Result(); err != nil || left < 30*time.Second || left > time.Minute {
		t.Fatalf("%v, %v", left, err)
	}
	// An error of one stands in its place, the others hold.
	answers, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Incr(ctx, other)
		pipe.Append(ctx, other, "s")
		return nil
	})
	if err == nil || answers[0].Err() == nil || answers[1].Err() != nil {
		t.Fatalf("%v, %v", err, answers)
	}
	got(t, "words")(client.Get(ctx, other).Result())
}

func watch(t *testing.T, client *redis.Client) {
	ctx, key := context.Background(), fresh()
	increment := func(tx *redis.Tx) error {
		number, err := tx.Get(ctx, key).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, key, number+1, 0)
			return nil
		})
		return err
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 10 {
				err := client.Watch(ctx, increment, key)
				for errors.Is(err, redis.TxFailedErr) {
					err = client.Watch(ctx, increment, key)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	got(t, "80")(client.Get(ctx, key).Result())
}

func script(t *testing.T, client *redis.Client) {
	ctx, key := context.Background(), fresh()
	count := redis.NewScript(`
		local n = redis.call('INCRBY', KEYS[1], ARGV[1])
		redis.call('PEXPIRE', KEYS[1], ARGV[2])
		return {n, redis.call('PTTL', KEYS[1]), redis.status_reply('FINE'), false}
	`)
	answer, err := count.Run(ctx, client, []string{key}, 5, 60_000).Slice()
	check(t, err)
	if len(answer) != 4 || answer[0] != int64(5) || answer[2] != "FINE" || answer[3] != nil {
		t.Fatalf("%v", answer)
	}
	if left := answer[1].(int64); left <= 0 || left > 60_000 {
		t.Fatalf("%d ms left", left)
	}
	check(t, count.Load(ctx, client).Err())
	if exists, err := count.Exists(ctx, client).Result(); err != nil || !exists[0] {
		t.Fatalf("%v, %v", exists, err)
	}
	got(t, "5")(redis.NewScript("return redis.call('GET', KEYS[1])").RunRO(ctx, client, []string{key}).Text())
	failed := redis.NewScript("redis.call('SET', KEYS[1], 'x') return redis.call('INCR', KEYS[1])")
	if err := failed.Run(ctx, client, []string{key}).Err(); err == nil {
		t.Fatal("INCR of a word has no error")
	}
}

// alone has some owners go in and out, and looks that there is one at a time.
func alone(t *testing.T, owners int, locked func(inside func()) error) {
	t.Helper()
	var inside, turns atomic.Int32
	var group sync.WaitGroup
	for range owners {
		group.Go(func() {
			err := locked(func() {
				if inside.Add(1) != 1 {
					t.Error("two owners")
				}
				time.Sleep(time.Millisecond)
				inside.Add(-1)
				turns.Add(1)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if int(turns.Load()) != owners {
		t.Fatalf("%d turns, of %d", turns.Load(), owners)
	}
}

func redsyncMutex(t *testing.T, client *redis.Client) {
	locks, name := redsync.New(redsyncredis.NewPool(client)), fresh()
	options := []redsync.Option{
		redsync.WithExpiry(20 * time.Second), redsync.WithTries(2000), redsync.WithRetryDelay(5 * time.Millisecond),
	}
	alone(t, 16, func(inside func()) error {
		mutex := locks.NewMutex(name, options...)
		if err := mutex.Lock(); err != nil {
			return err
		}
		inside()
		if extended, err := mutex.Extend(); !extended || err != nil {
			return fmt.Errorf("extended %v: %w", extended, err)
		}
		if unlocked, err := mutex.Unlock(); !unlocked || err != nil {
			return fmt.Errorf("unlocked %v: %w", unlocked, err)
		}
		return nil
	})
	// One whose time is over is nobody's, and its owner is told so.
	short := locks.NewMutex(name, redsync.WithExpiry(100*time.Millisecond))
	check(t, short.Lock())
	time.Sleep(150 * time.Millisecond)
	next := locks.NewMutex(name, options...)
	check(t, next.TryLock())
	if unlocked, _ := short.Unlock(); unlocked {
		t.Fatal("a lock that was another's is released")
	}
	if unlocked, err := next.Unlock(); !unlocked || err != nil {
		t.Fatalf("%v, %v", unlocked, err)
	}
}

func redisLock(t *testing.T, client *redis.Client) {
	ctx, locks, name := context.Background(), redislock.New(client), fresh()
	alone(t, 16, func(inside func()) error {
		lock, err := locks.Obtain(ctx, name, 20*time.Second, &redislock.Options{
			RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond),
		})
		if err != nil {
			return err
		}
		inside()
		if err := lock.Refresh(ctx, time.Minute, nil); err != nil {
			return err
		}
		if left, err := lock.TTL(ctx); err != nil || left <= 20*time.Second {
			return fmt.Errorf("%v left: %w", left, err)
		}
		return lock.Release(ctx)
	})
	lock, err := locks.Obtain(ctx, name, time.Minute, nil)
	check(t, err)
	if _, err := locks.Obtain(ctx, name, time.Minute, nil); !errors.Is(err, redislock.ErrNotObtained) {
		t.Fatalf("a second owner: %v", err)
	}
	got(t, int64(1))(client.Del(ctx, name).Result())
	if err := lock.Release(ctx); !errors.Is(err, redislock.ErrLockNotHeld) {
		t.Fatalf("released what is gone: %v", err)
	}
}

func redisRate(t *testing.T, client *redis.Client) {
	ctx, limiter, name := context.Background(), redis_rate.NewLimiter(client), fresh()
	// Ten minutes each: it counts in floating point.
	perHour := redis_rate.PerHour(6)
	var allowed atomic.Int32
	var group sync.WaitGroup
	for range 30 {
		group.Go(func() {
			result, err := limiter.Allow(ctx, name, perHour)
			if err != nil {
				t.Error(err)
				return
			}
			allowed.Add(int32(result.Allowed))
		})
	}
	group.Wait()
	if allowed.Load() != 6 {
		t.Fatalf("%d pass, of 6 that may", allowed.Load())
	}
	result, err := limiter.Allow(ctx, name, perHour)
	check(t, err)
	if result.Allowed != 0 || result.RetryAfter <= 0 || result.RetryAfter > time.Hour {
		t.Fatalf("%+v", result)
	}
	check(t, limiter.Reset(ctx, name))
	result, err = limiter.AllowAtMost(ctx, name, perHour, 10)
	check(t, err)
	if result.Allowed != 6 {
		t.Fatalf("%+v", result)
	}
}
