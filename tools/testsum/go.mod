module github.com/tandem-inference/tandem/tools/testsum

go 1.26.0
