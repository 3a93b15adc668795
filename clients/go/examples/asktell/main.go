// Asktell tunes a function in its own loop, without a worker or a trial program.
//
//	go run ./examples/asktell -loops 4
//
// It needs a scheduler, such as that of `headrace up`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	headracev1 "github.com/headrace/headrace/clients/go/headrace/v1"
)

func main() {
	address := flag.String("address", "", "the scheduler; empty: HEADRACE_ADDRESS, or that of `headrace up`")
	name := flag.String("study", fmt.Sprintf("branin-%d", time.Now().Unix()), "the name of the study to create")
	loops := flag.Int("loops", 1, "how many loops ask at once")
	trials := flag.Int("trials", 27, "how many configurations to try")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *address, *name, *loops, *trials); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address, name string, loops, trials int) error {
	client, err := headrace.New(address, headrace.WithLogger(slog.Default()))
	if err != nil {
		return err
	}
	defer client.Close()
	study, err := client.CreateStudy(ctx, name, &headracev1.StudySpec{
		Objective: headrace.Minimize("value"),
		Space:     []*headracev1.Parameter{headrace.Float("x", -5, 10), headrace.Float("y", 0, 15)},
		Sampler:   headrace.TPE(),
		Policy:    headrace.ASHA(3, 1, 3, 9),
		MaxTrials: int32(trials),
		MaxSteps:  9,
		// A trial that fails is tried once more.
		MaxRetries: 1,
	})
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	failures := make([]error, loops)
	for i := range loops {
		group.Go(func() { failures[i] = loop(ctx, study) })
	}
	group.Wait()
	if err := errors.Join(failures...); err != nil {
		return err
	}
	best, err := study.Best(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("best: trial %d, value %.4f, %v\n", best.GetNumber(), best.GetScore(), headrace.ParamsOf(best.GetParameters()))
	return nil
}

// loop runs trial after trial until the study is over.
func loop(ctx context.Context, study *headrace.Study) error {
	for asked, err := range study.AskAll(ctx, headrace.WithLease(time.Minute)) {
		if err != nil {
			return err
		}
		if err := evaluate(ctx, asked); err != nil && !errors.Is(err, headrace.LeaseStale) {
			return err
		}
	}
	return nil
}

// evaluate runs one trial until it is asked to leave. Each step evaluates the function with less noise.
func evaluate(ctx context.Context, asked *headrace.Asked) error {
	var at struct {
		X float64 `param:"x"`
		Y float64 `param:"y"`
	}
	if err := asked.Params.Decode(&at); err != nil {
		return err
	}
	for step := asked.Step() + 1; ; step++ {
		value := branin(at.X, at.Y) + math.Sin(float64(asked.Number()))/float64(step)
		decision, err := asked.Report(ctx, step, map[string]float64{"value": value})
		if err != nil {
			return err
		}
		if decision.Action != headrace.Continue {
			fmt.Printf("trial %2d: %-5v after step %d, value %.4f\n", asked.Number(), decision.Action, step, value)
			return nil
		}
	}
}

// branin has three minima of 0.3979.
func branin(x, y float64) float64 {
	a := y - 5.1/(4*math.Pi*math.Pi)*x*x + 5/math.Pi*x - 6
	return a*a + 10*(1-1/(8*math.Pi))*math.Cos(x) + 10
}
