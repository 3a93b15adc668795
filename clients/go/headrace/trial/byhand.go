package trial

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	pb "github.com/headrace/headrace/clients/go/headrace/v1"
)

// byHand is the runtime of a program that no worker started: it is not compared with others.
type byHand struct {
	params headrace.Params
	steps  int64
	out    io.Writer
}

func (b *byHand) attach(context.Context) (*pb.AttachResponse, error) {
	values := map[string]*pb.ParameterValue{}
	for name, value := range b.params {
		made, ok := headrace.Value(value)
		if !ok {
			return nil, fmt.Errorf("parameter %s is a %T; give a float64, an int64, an int, a string or a bool", name, value)
		}
		values[name] = made
	}
	return &pb.AttachResponse{Assign: &pb.Assign{
		Lease:      &pb.LeaseRef{Trial: "studies/by-hand/trials/0"},
		Parameters: &pb.ParameterAssignment{Values: values},
		MaxSteps:   b.steps, NextMilestone: b.steps, Grant: &pb.Grant{Slots: []int32{0}},
	}}, nil
}

func (b *byHand) restored(context.Context, time.Duration) error { return nil }

func (b *byHand) report(_ context.Context, report *pb.ReportRequest) (headrace.Decision, error) {
	var told []string
	for name, value := range report.GetMetrics() {
		told = append(told, fmt.Sprintf("%s=%g", name, value))
	}
	slices.Sort(told)
	_, err := fmt.Fprintf(b.out, "step %d: %s\n", report.GetStep(), strings.Join(told, " "))
	return headrace.Decision{Action: headrace.Continue, NextMilestone: b.steps}, err
}

func (b *byHand) finish(context.Context, string, string) error { return nil }

func (b *byHand) close() error { return nil }
