// Table shows a study in the terminal, live, until it ends.
//
//	go run ./examples/table digits
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/headrace/headrace/clients/go/headrace"
	headracev1 "github.com/headrace/headrace/clients/go/headrace/v1"
)

// rows is how many trials are shown: those with the latest events.
const rows = 12

func main() {
	address := flag.String("address", "", "the scheduler; empty: HEADRACE_ADDRESS, or that of `headrace up`")
	plain := flag.Bool("plain", false, "print each update below the last one, for a log")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatal("usage: table [-address HOST:PORT] [-plain] STUDY")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	client, err := headrace.New(*address)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	shown := table{out: os.Stdout, plain: *plain, trials: map[int64]row{}}
	for update, err := range client.Study(flag.Arg(0)).Watch(ctx, 0) {
		if err != nil {
			log.Fatal(err)
		}
		shown.take(update)
		shown.draw(update.Study)
	}
}

// row is a trial, built from its events.
type row struct {
	state  string
	step   int64
	value  float64
	detail string
	seen   int64 // the cursor of the last event
}

// table keeps the content of the events, so that nothing has to be requested.
type table struct {
	out    io.Writer
	plain  bool
	trials map[int64]row
}

func (t *table) take(update *headrace.Update) {
	for _, event := range update.Events {
		if event.TrialNumber == nil {
			continue
		}
		one := t.trials[event.GetTrialNumber()]
		one.seen = event.GetCursor()
		switch {
		case event.GetTrialMoved() != nil:
			one.state = word(event.GetTrialMoved())
			one.detail = event.GetTrialMoved().GetDetail()
		case event.GetReportRecorded() != nil:
			one.step = event.GetReportRecorded().GetStep()
			one.value = event.GetReportRecorded().GetMetrics()[update.Study.GetSpec().GetObjective().GetMetric()]
		case event.GetDecisionMade() != nil:
			one.detail = event.GetDecisionMade().GetExplanation().GetSentence()
		}
		t.trials[event.GetTrialNumber()] = one
	}
}

func (t *table) draw(study *headracev1.Study) {
	if !t.plain {
		fmt.Fprint(t.out, "\x1b[H\x1b[2J")
	}
	status := study.GetStatus()
	fmt.Fprintf(t.out, "%s  %s  %d running, %d paused, %d over", strings.TrimPrefix(study.GetName(), "studies/"),
		state(study.GetState().String()), status.GetRunning(), status.GetPaused(), status.GetTerminated())
	if best := status.GetBest(); best != nil {
		fmt.Fprintf(t.out, "; best %.5g of trial %d", best.GetScore(), best.GetNumber())
	}
	fmt.Fprintln(t.out)
	numbers := make([]int64, 0, len(t.trials))
	for number := range t.trials {
		numbers = append(numbers, number)
	}
	slices.SortFunc(numbers, func(a, b int64) int { return int(t.trials[b].seen - t.trials[a].seen) })
	numbers = numbers[:min(rows, len(numbers))]
	slices.Sort(numbers)
	fmt.Fprintf(t.out, "%5s  %-13s %6s  %10s  %s\n", "trial", "state", "step", "value", "")
	for _, number := range numbers {
		one := t.trials[number]
		fmt.Fprintf(t.out, "%5d  %-13s %6d  %10.5g  %.70s\n", number, one.state, one.step, one.value, one.detail)
	}
}

// word is the state in one word, or the reason for a trial that is over.
func word(moved *headracev1.TrialMoved) string {
	if moved.GetTerminationReason() != headracev1.TerminationReason_TERMINATION_REASON_UNSPECIFIED {
		return state(moved.GetTerminationReason().String())
	}
	return state(moved.GetToState().String())
}

// state is an enum's name without its prefix. A value that this program does not know remains a number.
func state(name string) string {
	for _, prefix := range []string{"TRIAL_STATE_", "STUDY_STATE_", "TERMINATION_REASON_"} {
		name = strings.TrimPrefix(name, prefix)
	}
	return strings.ToLower(name)
}
