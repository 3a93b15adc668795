// Soak runs ask/tell loops and a watch of one study to its end, and prints the answered calls as JSON. A test kills
// the scheduler meanwhile, and compares the output with what the scheduler knows afterwards.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"os"
	"sync"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	headracev1 "github.com/headrace/headrace/clients/go/headrace/v1"
)

// record is the output.
type record struct {
	// Reports has the trial and the step of each answered report.
	Reports [][2]int64 `json:"reports"`
	// Cursors has the cursors of the watched events, in order of arrival.
	Cursors []int64 `json:"cursors"`
	Trials  int     `json:"trials"`
	Seconds float64 `json:"seconds"`
}

func main() {
	address := flag.String("address", "", "the scheduler")
	name := flag.String("study", "soak", "the name of the study to create")
	trials := flag.Int("trials", 60, "how many configurations")
	loops := flag.Int("loops", 4, "how many loops ask at once")
	pause := flag.Duration("pause", 10*time.Millisecond, "between two reports")
	flag.Parse()
	client, err := headrace.New(*address, headrace.WithTimeout(time.Minute), headrace.WithConnectTimeout(time.Minute))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	found, err := soak(context.Background(), client, spec(*trials), *name, *loops, *pause)
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		log.Fatal(err)
	}
}

func spec(trials int) *headracev1.StudySpec {
	policy := headrace.ASHA(2, 2, 4, 8)
	policy.GetAsha().Variant = headracev1.AshaVariant_ASHA_VARIANT_STOPPING
	return &headracev1.StudySpec{
		Objective: headrace.Minimize("loss"),
		Space:     []*headracev1.Parameter{headrace.Float("x", 0, 1)},
		Policy:    policy,
		MaxTrials: int32(trials),
		MaxSteps:  8,
		Seed:      1,
	}
}

func soak(
	ctx context.Context, client *headrace.Client, spec *headracev1.StudySpec, name string, loops int, pause time.Duration,
) (*record, error) {
	study, err := client.CreateStudy(ctx, name, spec)
	if err != nil {
		return nil, err
	}
	found := &record{}
	var lock sync.Mutex
	var group sync.WaitGroup
	failures := make([]error, loops+1)
	group.Go(func() {
		for update, err := range study.Watch(ctx, 0) {
			if failures[loops] = err; err != nil {
				return
			}
			for _, event := range update.Events {
				found.Cursors = append(found.Cursors, event.GetCursor())
			}
		}
	})
	began := time.Now()
	for i := range loops {
		group.Go(func() {
			failures[i] = loop(ctx, study, pause, func(trial, step int64) {
				lock.Lock()
				defer lock.Unlock()
				found.Reports = append(found.Reports, [2]int64{trial, step})
			}, func() {
				lock.Lock()
				defer lock.Unlock()
				found.Trials++
			})
		})
	}
	group.Wait()
	found.Seconds = time.Since(began).Seconds()
	return found, errors.Join(failures...)
}

func loop(ctx context.Context, study *headrace.Study, pause time.Duration, reported func(trial, step int64), over func()) error {
	for asked, err := range study.AskAll(ctx) {
		if err != nil {
			return err
		}
		for step := asked.Step() + 1; ; step++ {
			time.Sleep(pause)
			decision, err := asked.Report(ctx, step, map[string]float64{"loss": float64(asked.Number()) + 1/float64(step)})
			if err != nil {
				return err
			}
			reported(asked.Number(), step)
			if decision.Action != headrace.Continue {
				break
			}
		}
		over()
	}
	return nil
}
