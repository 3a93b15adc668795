package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/headrace/headrace/clients/go/headrace"
	headracev1 "github.com/headrace/headrace/clients/go/headrace/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

func plan(ctx context.Context, s *session, c command) (any, error) {
	args, err := arguments[struct {
		Address string          `json:"address"`
		Model   string          `json:"model"`
		Cluster string          `json:"cluster"`
		CA      string          `json:"ca"`
		Options json.RawMessage `json:"options"`
	}](c)
	if err != nil {
		return nil, err
	}
	question := &headracev1.PlanQuestion{}
	if len(args.Options) > 0 {
		if err := protojson.Unmarshal(args.Options, question); err != nil {
			return nil, errBroken{fmt.Sprintf("the options: %v", err)}
		}
	}
	question.Model = &headracev1.PlanQuestion_ModelName{ModelName: args.Model}
	question.Cluster = &headracev1.PlanQuestion_ClusterName{ClusterName: args.Cluster}
	planner, err := headrace.NewPlanner(args.Address, headrace.WithCA(args.CA))
	if err != nil {
		return nil, err
	}
	defer func() { _ = planner.Close() }()
	found, err := planner.Plan(ctx, &headracev1.PlanRequest{Question: question}, func(now *headracev1.PlanProgress) {
		s.say(object{"id": c.ID, "item": object{"solved": now.GetSolved(), "tuples": now.GetTuples()}})
	})
	if err != nil {
		return nil, err
	}
	degrees := found.GetDegrees()
	return object{
		"iteration_s": found.GetIterationS(),
		"complete":    found.Complete,
		"degrees": object{
			"data": degrees.GetData(), "tensor": degrees.GetTensor(), "optimizer": degrees.GetOptimizer(),
			"pipeline": degrees.GetPipeline(), "micro_batches": degrees.GetMicroBatches(), "expert": degrees.GetExpert(),
		},
	}, nil
}
