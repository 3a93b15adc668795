package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/headrace/headrace/clients/go/headrace"
	headracev1 "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

type operation func(context.Context, *session, command) (any, error)

// studyArgs are the arguments of operations on studies and trials.
type studyArgs struct {
	Study      string            `json:"study"`
	Trial      int64             `json:"trial"`
	Spec       json.RawMessage   `json:"spec"`
	Parameters []json.RawMessage `json:"parameters"`
	States     []string          `json:"states"`
	After      int64             `json:"after"`
}

func operations() map[string]operation {
	return map[string]operation{
		"hello":        hello,
		"connect":      connect,
		"disconnect":   disconnect,
		"cancel":       cancel,
		"create_study": onStudy(createStudy),
		"get_study":    onStudy(shown((*headrace.Study).Get)),
		"pause_study":  onStudy(shown((*headrace.Study).Pause)),
		"resume_study": onStudy(shown((*headrace.Study).Resume)),
		"stop_study":   onStudy(shown(stopStudy)),
		"delete_study": onStudy(deleteStudy),
		"list_studies": listStudies,
		"add_trials":   onStudy(addTrials),
		"get_trial":    onStudy(getTrial),
		"stop_trial":   onStudy(stopTrial),
		"list_trials":  onStudy(listTrials),
		"list_reports": onStudy(listReports),
		"watch":        watch,
		"suggest":      suggest,
		"report":       report,
		"keep_alive":   keepAlive,
		"complete":     complete,
		"release":      release,
		"loop":         loop,
		"plan":         plan,
	}
}

func hello(context.Context, *session, command) (any, error) {
	return object{"client": "go", "version": version, "lacks": object{}}, nil
}

func connect(_ context.Context, s *session, c command) (any, error) {
	args, err := arguments[struct {
		Address         string   `json:"address"`
		CA              string   `json:"ca"`
		Token           string   `json:"token"`
		TimeoutS        *float64 `json:"timeout_s"`
		ConnectTimeoutS *float64 `json:"connect_timeout_s"`
	}](c)
	if err != nil {
		return nil, err
	}
	options := []headrace.Option{headrace.WithCA(args.CA), headrace.WithToken(args.Token)}
	if args.TimeoutS != nil {
		options = append(options, headrace.WithTimeout(seconds(*args.TimeoutS)))
	}
	if args.ConnectTimeoutS != nil {
		options = append(options, headrace.WithConnectTimeout(seconds(*args.ConnectTimeoutS)))
	}
	client, err := headrace.New(args.Address, options...)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[c.Client] = client
	return object{}, nil
}

func disconnect(_ context.Context, s *session, c command) (any, error) {
	client, err := s.client(c)
	if err != nil {
		return object{}, nil // its `connect` was refused
	}
	return object{}, client.Close()
}

func cancel(_ context.Context, s *session, c command) (any, error) {
	args, err := arguments[struct {
		ID int64 `json:"id"`
	}](c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := s.cancels[args.ID]; end != nil {
		end()
	}
	return object{}, err
}

// onStudy finds the handle and the arguments of an operation.
func onStudy(do func(context.Context, *headrace.Study, studyArgs, *session, command) (any, error)) operation {
	return func(ctx context.Context, s *session, c command) (any, error) {
		args, err := arguments[studyArgs](c)
		if err != nil {
			return nil, err
		}
		study, err := s.study(c, args.Study)
		if err != nil {
			return nil, err
		}
		return do(ctx, study, args, s, c)
	}
}

// shown turns a method that returns the study into an operation.
func shown(
	method func(*headrace.Study, context.Context) (*headracev1.Study, error),
) func(context.Context, *headrace.Study, studyArgs, *session, command) (any, error) {
	return func(ctx context.Context, study *headrace.Study, _ studyArgs, _ *session, _ command) (any, error) {
		found, err := method(study, ctx)
		return studyOf(found), err
	}
}

func stopStudy(study *headrace.Study, ctx context.Context) (*headracev1.Study, error) {
	return study.Stop(ctx, "")
}

func createStudy(ctx context.Context, study *headrace.Study, args studyArgs, s *session, c command) (any, error) {
	spec := &headracev1.StudySpec{}
	if err := protojson.Unmarshal(args.Spec, spec); err != nil {
		return nil, errBroken{fmt.Sprintf("the spec: %v", err)}
	}
	client, err := s.client(c)
	if err != nil {
		return nil, err
	}
	if _, err := client.CreateStudy(ctx, study.ID(), spec); err != nil {
		return nil, err
	}
	found, err := study.Get(ctx)
	return studyOf(found), err
}

func deleteStudy(ctx context.Context, study *headrace.Study, _ studyArgs, _ *session, _ command) (any, error) {
	return object{}, study.Delete(ctx)
}

func listStudies(ctx context.Context, s *session, c command) (any, error) {
	client, err := s.client(c)
	if err != nil {
		return nil, err
	}
	found, err := all(client.Studies(ctx), studyOf)
	return object{"studies": found}, err
}

func addTrials(ctx context.Context, study *headrace.Study, args studyArgs, _ *session, _ command) (any, error) {
	var configurations []headrace.Params
	for _, text := range args.Parameters {
		params, err := paramsOf(text)
		if err != nil {
			return nil, err
		}
		configurations = append(configurations, params)
	}
	added, err := study.AddTrials(ctx, configurations...)
	found := []object{}
	for _, trial := range added {
		found = append(found, trialOf(trial))
	}
	return object{"trials": found}, err
}

func getTrial(ctx context.Context, study *headrace.Study, args studyArgs, _ *session, _ command) (any, error) {
	found, err := study.Trial(args.Trial).Get(ctx)
	return trialOf(found), err
}

func stopTrial(ctx context.Context, study *headrace.Study, args studyArgs, _ *session, _ command) (any, error) {
	found, err := study.Trial(args.Trial).Stop(ctx, "")
	return trialOf(found), err
}

func listTrials(ctx context.Context, study *headrace.Study, args studyArgs, _ *session, _ command) (any, error) {
	var states []headracev1.TrialState
	for _, name := range args.States {
		states = append(states, headracev1.TrialState(headracev1.TrialState_value["TRIAL_STATE_"+name]))
	}
	found, err := all(study.Trials(ctx, states...), trialOf)
	return object{"trials": found}, err
}

func listReports(ctx context.Context, study *headrace.Study, _ studyArgs, _ *session, _ command) (any, error) {
	found, err := all(study.Reports(ctx), func(one *headracev1.TrialReport) object {
		metrics := object{}
		for name, value := range one.GetMetrics() {
			metrics[name] = number(value)
		}
		return object{"trial": one.GetTrialNumber(), "step": one.GetStep(), "metrics": metrics}
	})
	return object{"reports": found}, err
}

func watch(ctx context.Context, s *session, c command) (any, error) {
	args, err := arguments[studyArgs](c)
	if err != nil {
		return nil, err
	}
	study, err := s.study(c, args.Study)
	if err != nil {
		return nil, err
	}
	for update, err := range study.Watch(ctx, args.After) {
		if err != nil {
			return nil, err
		}
		cursors, kinds := []int64{}, []string{}
		for _, event := range update.Events {
			cursors = append(cursors, event.GetCursor())
			kinds = append(kinds, kindOf(event))
		}
		s.say(object{"id": c.ID, "item": object{"cursors": cursors, "kinds": kinds, "study": studyOf(update.Study)}})
	}
	return object{}, nil
}

// all reads a list to its end. Entries that cannot be shown are left out.
func all[T any](list iter.Seq2[T, error], shown func(T) object) ([]object, error) {
	found := []object{}
	for one, err := range list {
		var unshown *headrace.Unshown
		if errors.As(err, &unshown) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, shown(one))
	}
	return found, nil
}
