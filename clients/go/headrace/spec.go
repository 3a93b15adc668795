package headrace

import pb "github.com/headrace/headrace/clients/go/headrace/v1"

// The functions in this file build the usual parts of a study's spec. The message has everything else.

// Minimize is the objective for a metric whose smallest value is the best.
func Minimize(metric string) *pb.Objective {
	return &pb.Objective{Metric: metric, Goal: pb.Goal_GOAL_MINIMIZE}
}

// Maximize is the objective for a metric whose largest value is the best.
func Maximize(metric string) *pb.Objective {
	return &pb.Objective{Metric: metric, Goal: pb.Goal_GOAL_MAXIMIZE}
}

// Float is a parameter in the closed interval from low to high.
func Float(name string, low, high float64) *pb.Parameter {
	return &pb.Parameter{Name: name, Domain: &pb.Parameter_Float{Float: &pb.FloatDomain{Low: low, High: high}}}
}

// LogFloat is a parameter from low to high, uniform in the logarithm.
func LogFloat(name string, low, high float64) *pb.Parameter {
	return &pb.Parameter{Name: name, Domain: &pb.Parameter_Float{Float: &pb.FloatDomain{Low: low, High: high, Log: true}}}
}

// Int is a whole-number parameter in the closed interval from low to high.
func Int(name string, low, high int64) *pb.Parameter {
	return &pb.Parameter{Name: name, Domain: &pb.Parameter_Int{Int: &pb.IntDomain{Low: low, High: high}}}
}

// LogInt is a whole-number parameter from low to high, uniform in the logarithm.
func LogInt(name string, low, high int64) *pb.Parameter {
	return &pb.Parameter{Name: name, Domain: &pb.Parameter_Int{Int: &pb.IntDomain{Low: low, High: high, Log: true}}}
}

// Choice is a parameter that takes one of the values.
func Choice[T float64 | int64 | int | string | bool](name string, values ...T) *pb.Parameter {
	domain := &pb.CategoricalDomain{}
	for _, value := range values {
		made, _ := Value(value)
		domain.Values = append(domain.Values, made)
	}
	return &pb.Parameter{Name: name, Domain: &pb.Parameter_Categorical{Categorical: domain}}
}

// RunAll runs every trial to the full budget.
func RunAll() *pb.Policy {
	return &pb.Policy{Kind: &pb.Policy_RunAll{RunAll: &pb.RunAllPolicy{}}}
}

// ASHA compares trials at the rungs, the last of which is the full budget. The best 1/eta continue.
func ASHA(eta int32, rungs ...int64) *pb.Policy {
	return &pb.Policy{Kind: &pb.Policy_Asha{Asha: &pb.AshaPolicy{Eta: eta, Rungs: rungs}}}
}

// TPE proposes configurations based on the results of earlier ones.
func TPE() *pb.Sampler {
	return &pb.Sampler{Kind: &pb.Sampler_Tpe{Tpe: &pb.TpeSampler{}}}
}

// Command is what a trial runs: a program and its arguments, in a folder that every worker can reach. An argument may
// contain placeholders such as {lr} and {trial}.
func Command(folder string, args ...string) *pb.TrialTemplate {
	return &pb.TrialTemplate{
		Program:    &pb.TrialTemplate_Command{Command: &pb.CommandLine{Args: args}},
		WorkingDir: folder,
	}
}
