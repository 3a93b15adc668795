// Bench runs ask/tell loops of an existing study, for benchmarks/clients: `bench STUDY LOOPS`. It prints how many
// trials it ran in how many seconds.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: bench STUDY LOOPS")
	}
	loops, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	client, err := headrace.New("")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	trials, took, err := run(context.Background(), client.Study(os.Args[1]), loops)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"trials": trials, "seconds": took.Seconds()}); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, study *headrace.Study, loops int) (trials int64, took time.Duration, err error) {
	if _, err := study.Get(ctx); err != nil { // the connection exists
		return 0, 0, err
	}
	var done atomic.Int64
	var group sync.WaitGroup
	failures := make([]error, loops)
	began := time.Now()
	for i := range loops {
		group.Go(func() { failures[i] = loop(ctx, study, &done) })
	}
	group.Wait()
	return done.Load(), time.Since(began), errors.Join(failures...)
}

func loop(ctx context.Context, study *headrace.Study, done *atomic.Int64) error {
	for asked, err := range study.AskAll(ctx) {
		if err != nil {
			return err
		}
		if _, err := asked.Report(ctx, 1, map[string]float64{"loss": asked.Params["x"].(float64)}); err != nil {
			return err
		}
		done.Add(1)
	}
	return nil
}
