module github.com/tandem-inference/tandem/tools/gpures

go 1.26.0
