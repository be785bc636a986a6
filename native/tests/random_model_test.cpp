// Random models: the bytes are those of the description, whatever machine makes them.
#include "random_model.h"

#include "sha256.h"

using namespace tnd::test;

TEST(bytes_are_those_of_the_description) {
  for (const char* name : {"ratio3", "onelayer"}) {
    const RandomModel m = make_random_model(name);
    CHECK_EQ(sha256(m.image.data(), m.image.size()), m.sha256);
  }
}

TEST(a_path_reads_back) {
  const std::string path = random_model("onelayer");
  CHECK_EQ(random_model("onelayer"), path);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  CHECK(bytes.str() == make_random_model("onelayer").image);
}

TEST_MAIN()
