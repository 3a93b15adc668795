package trial

import (
	"math"

	pb "github.com/headrace/headrace/clients/go/headrace/v1"
)

// best follows the reports of a trial whose study keeps the checkpoint of the best value (`keep: best`). The scheduler decides
// by the same rule.
type best struct {
	wanted *pb.KeepBest // nil if the study keeps none
	metric string
	value  float64
	has    bool
}

func bestOf(assign *pb.Assign) best {
	wanted := assign.GetKeepBest()
	return best{
		wanted: wanted, metric: assign.GetMetric(), value: wanted.GetBestValue(), has: wanted != nil && wanted.BestValue != nil,
	}
}

// take remembers a report, and says whether it is the best so far.
func (b *best) take(metrics map[string]float64) bool {
	value, reported := metrics[b.metric]
	if b.wanted == nil || !reported || math.IsNaN(value) || math.IsInf(value, 0) || !b.improves(value) {
		return false
	}
	for _, one := range b.wanted.GetConstraints() {
		if !meets(one, metrics) {
			return false
		}
	}
	b.value, b.has = value, true
	return true
}

func (b *best) improves(value float64) bool {
	if !b.has {
		return true
	}
	if b.wanted.GetGoal() == pb.Goal_GOAL_MAXIMIZE {
		return value > b.value
	}
	return value < b.value
}

// meets says whether a report meets a constraint; one without the metric does not.
func meets(constraint *pb.Constraint, metrics map[string]float64) bool {
	value, reported := metrics[constraint.GetMetric()]
	switch bound := constraint.GetBound().(type) {
	case *pb.Constraint_AtMost:
		return reported && value <= bound.AtMost
	case *pb.Constraint_AtLeast:
		return reported && value >= bound.AtLeast
	}
	return true
}
