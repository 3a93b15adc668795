package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
)

const renewEvery = 300 * time.Millisecond

// askArgs are the arguments of ask and tell.
type askArgs struct {
	Study         string                     `json:"study"`
	ClientID      string                     `json:"client_id"`
	LeaseS        *float64                   `json:"lease_s"`
	Asked         int64                      `json:"asked"`
	Step          int64                      `json:"step"`
	Metrics       map[string]json.RawMessage `json:"metrics"`
	CheckpointURI string                     `json:"checkpoint_uri"`
	Seconds       float64                    `json:"seconds"`
	Error         *string                    `json:"error"`
	Loops         int                        `json:"loops"`
	PauseS        float64                    `json:"pause_s"`
}

func (a askArgs) options() []headrace.AskOption {
	var options []headrace.AskOption
	if a.ClientID != "" {
		options = append(options, headrace.WithClientID(a.ClientID))
	}
	if a.LeaseS != nil {
		options = append(options, headrace.WithLease(seconds(*a.LeaseS)))
	}
	return options
}

func suggest(ctx context.Context, s *session, c command) (any, error) {
	args, err := arguments[askArgs](c)
	if err != nil {
		return nil, err
	}
	study, err := s.study(c, args.Study)
	if err != nil {
		return nil, err
	}
	asked, err := study.Ask(ctx, args.options()...)
	if errors.Is(err, headrace.StudyOver) {
		return object{"asked": nil, "done": true}, nil
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	s.asked[s.next] = asked
	return object{"asked": s.next, "trial": trialOf(asked.Trial), "next_milestone": asked.Milestone, "done": false}, nil
}

// held is the trial to which a command refers.
func held(s *session, c command) (*headrace.Asked, askArgs, error) {
	args, err := arguments[askArgs](c)
	if err != nil {
		return nil, args, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked[args.Asked]
	if asked == nil {
		return nil, args, errBroken{fmt.Sprintf("nothing was asked as %d", args.Asked)}
	}
	return asked, args, nil
}

func report(ctx context.Context, s *session, c command) (any, error) {
	asked, args, err := held(s, c)
	if err != nil {
		return nil, err
	}
	metrics := map[string]float64{}
	for name, text := range args.Metrics {
		if metrics[name], err = floatOf(text); err != nil {
			return nil, err
		}
	}
	decision, err := asked.ReportSaved(ctx, args.Step, metrics, args.CheckpointURI)
	return object{"action": actionOf(decision), "next_milestone": decision.NextMilestone}, err
}

func keepAlive(ctx context.Context, s *session, c command) (any, error) {
	asked, args, err := held(s, c)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, seconds(args.Seconds))
	defer cancel()
	return object{}, asked.KeepAlive(limited, renewEvery)
}

func complete(ctx context.Context, s *session, c command) (any, error) {
	asked, args, err := held(s, c)
	if err != nil {
		return nil, err
	}
	if args.Error != nil {
		found, err := asked.Fail(ctx, errors.New(*args.Error))
		return trialOf(found), err
	}
	found, err := asked.Complete(ctx)
	return trialOf(found), err
}

func release(ctx context.Context, s *session, c command) (any, error) {
	asked, _, err := held(s, c)
	if err != nil {
		return nil, err
	}
	found, err := asked.Release(ctx)
	return trialOf(found), err
}

func loop(ctx context.Context, s *session, c command) (any, error) {
	args, err := arguments[askArgs](c)
	if err != nil {
		return nil, err
	}
	study, err := s.study(c, args.Study)
	if err != nil {
		return nil, err
	}
	var reports, stale atomic.Int64
	var group sync.WaitGroup
	failures := make([]error, args.Loops)
	began := time.Now()
	for i := range args.Loops {
		group.Go(func() { failures[i] = oneLoop(ctx, study, args, &reports, &stale) })
	}
	group.Wait()
	return object{"reports": reports.Load(), "stale": stale.Load(), "seconds": time.Since(began).Seconds()},
		errors.Join(failures...)
}

func oneLoop(ctx context.Context, study *headrace.Study, args askArgs, reports, stale *atomic.Int64) error {
	for asked, err := range study.AskAll(ctx, args.options()...) {
		if err != nil {
			return err
		}
		for step := asked.Step() + 1; ; step++ {
			time.Sleep(seconds(args.PauseS))
			loss := asked.Params["x"].(float64) + 1/float64(step)
			uri := fmt.Sprintf("mem:/%d/%d", asked.Number(), step)
			decision, err := asked.ReportSaved(ctx, step, map[string]float64{"loss": loss}, uri)
			if errors.Is(err, headrace.LeaseStale) {
				stale.Add(1)
				break
			}
			if err != nil {
				return err
			}
			reports.Add(1)
			if decision.Action != headrace.Continue {
				break
			}
		}
	}
	return nil
}
